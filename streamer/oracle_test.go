package streamer_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/client"
	"millrace/streamer/watermark"
)

// An oracle knows what upstream committed, and in which order, from a slot of its own
// that no streamer has anything to do with. It needs no answer to a commit: a server that
// is killed in the middle of one has decided it all the same.
type oracle struct {
	conn        *pgx.Conn
	slot        string
	publication string
}

// newOracle begins to listen: what is committed from now on is known.
func newOracle(t *testing.T, conn *pgx.Conn, publication string) *oracle {
	t.Helper()
	o := &oracle{conn: conn, publication: publication}
	o.slot = "oracle_" + tell[string](t, conn, `select current_database()::text`)
	do(t, conn, `select pg_create_logical_replication_slot($1, 'pgoutput')`, o.slot)
	return o
}

// heard is a transaction that upstream committed.
type heard struct {
	watermark string
	xid       uint32
}

// committed lists all of them, in commit order.
func (o *oracle) committed(t *testing.T, conn *pgx.Conn) []heard {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		select data
		from pg_logical_slot_peek_binary_changes($1, null, null, 'proto_version', '1', 'publication_names', $2)
		where get_byte(data, 0) = ascii('B')`, o.slot, o.publication)
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h heard, err error) {
		var b []byte
		if err := row.Scan(&b); err != nil || len(b) != 1+8+8+4 {
			return h, fmt.Errorf("a begin of %d bytes: %w", len(b), err)
		}
		// The kind, the LSN of the commit, its time, the transaction.
		return heard{watermark.Encode(binary.BigEndian.Uint64(b[1:])), binary.BigEndian.Uint32(b[17:])}, nil
	})
	require.NoError(t, err)
	return list
}

// A follower is a subscriber under the eyes of a Checker. It comes back by itself, and
// can be stopped and started again where it was.
type follower struct {
	name   string
	watch  *Watched
	find   func(ctx context.Context) (string, error)
	handle func(m client.Message) // may be slow; nil: nothing
	tune   func(*client.Config)   // changes how it subscribes; nil: not

	cancel context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	at  client.Position // behind the last transaction received whole
	err error
}

// follow subscribes behind start.
func follow(t *testing.T, c *Checker, name string, find func(context.Context) (string, error), start client.Position, handle func(client.Message)) *follower {
	t.Helper()
	return followAs(t, c, name, find, start, handle, nil)
}

// followAs subscribes behind start in another way.
func followAs(t *testing.T, c *Checker, name string, find func(context.Context) (string, error), start client.Position,
	handle func(client.Message), tune func(*client.Config),
) *follower {
	t.Helper()
	f := &follower{name: name, find: find, at: start, handle: handle, tune: tune, watch: c.Subscriber(name, start.Watermark)}
	require.NoError(t, f.start(t.Context()))
	t.Cleanup(f.stop)
	return f
}

func (f *follower) start(ctx context.Context) error {
	at := f.position()
	cfg := client.Config{
		Discover: f.find, TaskID: f.name, ID: f.name + "/1",
		ReplicaVersion: at.ReplicaVersion, Watermark: at.Watermark,
		BackoffMax: 500 * time.Millisecond, Liveness: 20 * time.Second,
		Handler: func(_ context.Context, m client.Message) error {
			if f.handle != nil {
				f.handle(m)
			}
			return f.watch.Message(m.Bytes)
		},
		Persist: func(_ context.Context, p client.Position) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.at = p
			return nil
		},
	}
	if f.tune != nil {
		f.tune(&cfg)
	}
	c, err := client.New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	f.mu.Lock()
	f.cancel, f.ended = cancel, ended
	f.mu.Unlock()
	go func() {
		defer close(ended)
		err := c.Run(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.err = err
	}()
	return nil
}

// stop stops it between two messages, or inside a transaction, which is rolled back.
func (f *follower) stop() {
	f.mu.Lock()
	cancel, ended := f.cancel, f.ended
	f.mu.Unlock()
	cancel()
	<-ended
}

func (f *follower) position() client.Position {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

func (f *follower) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// reaches waits until it has everything up to a commit.
func (f *follower) reaches(t *testing.T, watermark string, limit time.Duration) {
	t.Helper()
	for end := time.Now().Add(limit); f.position().Watermark < watermark; breathe(glimpse) {
		select {
		case <-f.ended:
			require.FailNow(t, "a subscriber ended", "%s: %v", f.name, f.failure())
		default:
		}
		if time.Now().After(end) {
			require.FailNow(t, "a subscriber does not arrive", "after %s %s is at %s, not at %s",
				limit, f.name, f.position().Watermark, watermark)
		}
	}
}

// fixed is how an address that does not change is found.
func fixed(address string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return address, nil }
}

// found asks the change database for the owner's address.
func found(t *testing.T, changeDB, schema string) func(context.Context) (string, error) {
	t.Helper()
	config, err := pgx.ParseConfig(changeDB)
	require.NoError(t, err)
	discover := client.Discovery(config, schema)
	return func(ctx context.Context) (string, error) {
		address, err := discover(ctx)
		if err != nil {
			// A database that restarts says many things; here all of them pass.
			return "", fmt.Errorf("not now: %v", err) //nolint:errorlint // not ErrPermanent
		}
		return address, nil
	}
}

// rereads gives a Checker the log as if it were a subscriber: it must hold the same.
func rereads(t *testing.T, c *Checker, conn *pgx.Conn, replicaVersion string) {
	t.Helper()
	w := c.Subscriber("the log", replicaVersion)
	rows, err := conn.Query(t.Context(), `
		select c.watermark, c.pos, coalesce(c.precommit, ''), c.change::text
		from cdc."changeLog" as c
		where c.watermark > $1 collate "C"
		order by c.watermark collate "C", c.pos`, replicaVersion)
	require.NoError(t, err)
	var tx, precommit, text string
	var pos, due int64
	_, err = pgx.ForEachRow(rows, []any{&tx, &pos, &precommit, &text}, func() error {
		var head struct {
			Tag string `json:"tag"`
		}
		if err := json.Unmarshal([]byte(text), &head); err != nil {
			return err
		}
		kind := change.Data
		switch head.Tag {
		case "begin":
			kind, due = change.Begin, 0
		case "commit":
			kind = change.Commit
		}
		if pos != due {
			return fmt.Errorf("position %d of %s is %d", due, tx, pos)
		}
		due++
		return w.Message(change.Append(nil, kind, []byte(text), tx))
	})
	require.NoError(t, err)
}
