package changelog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// listening is a Listen under way.
type listening struct {
	t      *testing.T
	heard  chan struct{}
	answer chan error // what the callback returns
	ended  chan error
	stop   context.CancelFunc
}

func (f *fixture) listen(t *testing.T) *listening {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &listening{t: t, heard: make(chan struct{}), answer: make(chan error), ended: make(chan error, 1), stop: stop}
	ledger := f.ledger()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.ended <- ledger.Listen(ctx, pgtest.Schema, func(ctx context.Context) error {
			select {
			case l.heard <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case err := <-l.answer:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return l
}

// hears waits for a call, which does not return before the answer.
func (l *listening) hears() {
	l.t.Helper()
	select {
	case <-l.heard:
	case err := <-l.ended:
		require.FailNow(l.t, "it ended", "%v", err)
	case <-time.After(patience):
		require.FailNow(l.t, "it heard nothing")
	}
}

// end waits for the end.
func (l *listening) end() error {
	l.t.Helper()
	select {
	case err := <-l.ended:
		return err
	case <-l.heard:
		require.FailNow(l.t, "it heard something")
	case <-time.After(patience):
		require.FailNow(l.t, "it did not end")
	}
	return nil
}

func TestListen(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	l := f.listen(t)
	l.hears() // at once: what happened before is not told
	l.answer <- nil
	f.exec(`select assume_ownership('other/2', null, $1, $2)`, version, owner)
	l.hears()
	// What comes meanwhile is heard later.
	f.exec(`select assume_ownership('another/3', null, $1, 'other/2')`, version)
	l.answer <- nil
	l.hears()
	l.answer <- nil

	f.exec(`select pg_notify('cdc', 'cdc_1')`)
	f.exec(`select pg_notify('cdc', '')`)
	f.exec(`select pg_notify('cdc_1', 'cdc')`)
	f.exec(`select pg_notify('cdc', 'cdc')`)
	l.hears()
	over := errors.New("enough")
	l.answer <- over
	require.Same(t, over, l.end(), "had the others been heard, it would have been called again")
	require.Eventually(t, func() bool { // the server takes a moment to see that it is closed
		return f.text(`select count(*)::text from pg_stat_activity where datname = current_database()
			and application_name = 'zero-change-streamer'`) == "0"
	}, patience, 10*time.Millisecond)
}

func TestListenHearsATakeOverAtTheHead(t *testing.T) {
	t.Parallel()
	for name, way := range offers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			r.cfg.BatchRows = 10
			if way.pieces {
				r.withoutInsert()
			}
			l := r.listen(t)
			l.hears()
			l.answer <- nil
			r.run()
			way.offer(r)
			l.hears()
			require.Equal(t, newcomer, r.text(`select owner from "replicationState"`), "it is told when it is so")
			r.halt()
		})
	}
}

func TestListenEnds(t *testing.T) {
	t.Parallel()
	over := errors.New("enough")
	t.Run("with the first answer", func(t *testing.T) {
		t.Parallel()
		l := newFixture(t).listen(t)
		l.hears()
		l.answer <- over
		require.Same(t, over, l.end())
	})
	t.Run("with the context", func(t *testing.T) {
		t.Parallel()
		l := newFixture(t).listen(t)
		l.hears()
		l.answer <- nil
		l.stop()
		require.ErrorIs(t, l.end(), context.Canceled)
	})
	t.Run("before it began", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := f.ledger().Listen(ctx, pgtest.Schema, func(context.Context) error { return over })
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "listen for take-overs")
	})
	t.Run("with its session", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		l := f.listen(t)
		l.hears()
		l.answer <- nil
		f.terminateStore() // the only session of that name
		err := l.end()
		require.ErrorContains(t, err, "57P01")
		require.ErrorContains(t, err, "listen for take-overs")
	})
}
