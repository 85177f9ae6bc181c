package changelog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/changelog"
)

// The answer is lost, or nothing was done: either way the log is taken exactly once.
func TestNewcomerAfterCut(t *testing.T) {
	t.Parallel()
	taken := func(r *rival) {
		require.Eventually(r.t, func() bool { return r.text(`select owner from "replicationState"`) == newcomer },
			patience, 5*time.Millisecond)
	}
	for name, cut := range map[string]func(r *rival){
		"in the middle of a batch": func(r *rival) {
			cut := r.proxy.cutAfter(20_000)
			r.tail.transaction(w(2), 400, 100)
			<-cut
		},
		"before a batch was stored": func(r *rival) {
			release := r.lockState()
			r.tail.transaction(w(2), 400, 100)
			r.awaitWaiting()
			r.terminateStore()
			release()
		},
		"behind the commit of a batch": func(r *rival) {
			r.proxy.block(toClient)
			r.tail.transaction(w(2), 400, 100)
			taken(r)
			r.proxy.release(toClient)
			r.proxy.cut()
		},
		"before a take-over at a mark": func(r *rival) {
			release := r.lockState()
			r.tail.shown(w(1) + ".01")
			r.awaitWaiting()
			r.terminateStore()
			release()
		},
		"behind the commit of a take-over at a mark": func(r *rival) {
			release := r.lockState()
			r.tail.shown(w(1) + ".01")
			r.awaitWaiting()
			r.proxy.block(toClient)
			release()
			taken(r)
			r.proxy.release(toClient)
			r.proxy.cut()
		},
		"behind the commit, with more in the tail": func(r *rival) {
			r.proxy.block(toClient)
			r.tail.transaction(w(2), 400, 100)
			taken(r)
			r.tail.begin(w(3))
			r.tail.publish()
			r.tail.setFull(true)
			r.proxy.release(toClient)
			r.proxy.cut()
			r.awaitStored(w(2))
			r.tail.commit()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
			r.run()
			r.tail.transaction(w(1), 3, 10)
			r.awaitStored(w(1))
			cut(r)
			head := min(r.tail.last(), w(2))
			r.awaitAssumed(head)
			r.tail.transaction(w(4), 3, 10)
			r.awaitStored(w(4))
			r.proxy.cut() // once more, as the owner
			r.tail.transaction(w(5), 3, 10)
			r.awaitStored(w(5))
			r.halt()
			r.requireTaken(head)
			r.requireLog()
		})
	}
}

func TestNewcomerLargeConnectionDies(t *testing.T) {
	t.Parallel()
	begin := func(r *rival) {
		r.cfg.BatchRows = 10
		require.NoError(r.t, r.ownerStores(r.conn, 3, 10, 1))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.tail.begin(w(2))
		for range 50 {
			r.tail.data(10_000)
		}
		r.tail.publish()
		r.awaitTail("passed", func(s state) bool { return s.passed == 54 })
	}
	end := func(r *rival, head int) {
		r.t.Helper()
		r.awaitAssumed(w(head))
		r.tail.transaction(w(head+1), 3, 10)
		r.awaitStored(w(head + 1))
		r.halt()
		r.requireTaken(w(head))
		r.requireLog()
	}
	t.Run("kept", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(_ *testing.T, r *rival) {
			begin(r)
			r.terminateStore()
			r.tail.data(10)
			r.tail.commit()
			end(r, 2)
		})
	})
	t.Run("dropped", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(_ *testing.T, r *rival) {
			r.tail.setDrops()
			begin(r)
			r.terminateStore()
			r.tail.data(10)
			r.tail.publish()
			r.awaitTail("broken", func(s state) bool { return s.broken == 3 })
			r.requirePending()
			r.tail.abort()
			r.tail.transaction(w(2), 30, 10)
			end(r, 2)
		})
	})
	t.Run("committed", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.tail.setDrops()
			begin(r)
			r.proxy.block(toClient)
			r.tail.commit()
			if r.cfg.Conn.User != "postgres" {
				r.awaitIdleInTransaction()
				r.proxy.release(toClient)
			}
			require.Eventually(t, func() bool { return r.head() == w(2) }, patience, time.Millisecond)
			r.proxy.release(toClient)
			r.proxy.cut()
			end(r, 2)
			s, _ := r.tail.state()
			require.EqualValues(t, -1, s.broken)
		})
	})
	t.Run("stored by the owner meanwhile", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.tail.setDrops()
			begin(r)
			r.proxy.block(toServer) // it comes back only when the owner has stored
			r.terminateStore()
			require.NoError(t, r.ownerStores(r.conn, 52, 10_000, 2))
			r.proxy.release(toServer)
			r.proxy.cut()
			r.tail.data(10)
			r.tail.publish()
			r.awaitTail("broken", func(s state) bool { return s.broken == 3 })
			r.tail.abort()
			r.tail.transaction(w(2), 52, 10_000)
			r.awaitStored(w(2))
			r.requirePending()
			r.tail.transaction(w(3), 52, 10)
			end(r, 3)
		})
	})
}

// TestNewcomerWaitsForTheStateRow: somebody else's lock is neither a wedge nor an error [R17].
func TestNewcomerWaitsForTheStateRow(t *testing.T) {
	t.Parallel()
	waits := func(r *rival) {
		r.t.Helper()
		r.cfg.StatementTimeout = 2 * time.Second // half of that for a lock
		r.tail.setFull(true)
		release := r.lockState()
		r.run()
		r.awaitLine("waited for a lock", 7) // wedged would be after six
		r.requirePending()
		release()
	}
	ends := func(r *rival, head string) {
		r.t.Helper()
		r.awaitAssumed(head)
		r.halt()
		require.NotContains(r.t, r.lines.String(), "interrupted")
		r.requireLog()
	}
	t.Run("with a batch", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		r.tail.transaction(w(1), 3, 10)
		waits(r)
		ends(r, w(1))
	})
	t.Run("with a large transaction", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(_ *testing.T, r *rival) {
			r.tail.transaction(w(1), 3000, 10)
			waits(r)
			ends(r, w(1))
		})
	})
	t.Run("with a mark", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		r.tail.shown(w(1))
		waits(r)
		ends(r, version)
	})
}

// offers are the ways to take the log over.
var offers = map[string]struct {
	pieces bool
	offer  func(r *rival)
}{
	"with a batch":             {false, func(r *rival) { r.tail.transaction(w(7), 3, 10) }},
	"with a large transaction": {false, func(r *rival) { r.tail.transaction(w(7), 30, 10) }},
	"in pieces":                {true, func(r *rival) { r.tail.transaction(w(7), 30, 10) }},
	"with a mark":              {false, func(r *rival) { r.tail.shown(w(7)) }},
}

// contents is what a take-over would change.
func (r *rival) contents() string {
	r.t.Helper()
	return r.text(`select concat_ws(E'\n',
		(select string_agg(s::text, ' ') from "replicationState" as s),
		(select string_agg(s::text, ' ' order by s.id) from streamer as s),
		(select max(l.watermark) from "changeLog" as l))`)
}

func TestNewcomerMayNotTakeOver(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		happens func(r *rival)
		younger bool
	}{
		"a younger one has": {(*rival).takeAsYounger, true},
		"it was condemned": {func(r *rival) {
			r.exec(`select condemn_streamer(id, $1, $2) from streamer where owner = $3`, owner, version, newcomer)
		}, false},
		"it was retired": {func(r *rival) {
			r.exec(`select retire_streamer(id) from streamer where owner = $1`, newcomer)
		}, false},
		"it was never announced": {func(r *rival) {
			r.exec(`delete from streamer where owner = $1`, newcomer)
		}, false},
		"the log was reset": {func(r *rival) {
			r.exec(`select ensure_replication_config($1, '{p}', $1, auto_reset => true)`, w(5))
		}, false},
		"the log is empty": {func(r *rival) { r.exec(`truncate "replicationState", "changeLog"`) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, way := range offers {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					r := newRival(t)
					r.cfg.BatchRows = 10
					if way.pieces {
						r.withoutInsert()
					}
					require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
					r.run()
					r.tail.transaction(w(1), 3, 10)
					r.awaitStored(w(1))
					tt.happens(r)
					before := r.contents()
					way.offer(r)
					err := r.end()
					require.ErrorIs(t, err, changelog.ErrOwnershipLost)
					require.Equal(t, tt.younger, errors.Is(err, changelog.ErrYounger), err)
					require.Empty(t, r.assumed)
					require.Equal(t, before, r.contents())
					require.Equal(t, w(1), r.storedW)
				})
			}
		})
	}
}

// Whoever has nothing to offer looks at the log now and then.
func TestNewcomerLooksAtTheLog(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		query string
		want  error
	}{
		"reset":     {`select ensure_replication_config('05', '{p}', '05', auto_reset => true)`, changelog.ErrOwnershipLost},
		"emptied":   {`truncate "replicationState", "changeLog"`, changelog.ErrOwnershipLost},
		"dropped":   {`drop schema cdc cascade`, changelog.ErrOwnershipLost},
		"fell back": {`update "replicationState" set "lastWatermark" = '` + w(1) + `'`, changelog.ErrFellBack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			require.NoError(t, r.ownerStores(r.conn, 3, 10, 1, 2))
			r.run()
			r.tail.transaction(w(1), 3, 10)
			r.tail.transaction(w(2), 3, 10)
			r.awaitStored(w(2))
			r.exec(tt.query)
			require.ErrorIs(t, r.end(), tt.want)
			require.Empty(t, r.assumed)
		})
	}
}

func TestNewcomerDoesNotStoreBehindAGap(t *testing.T) {
	t.Parallel()
	for name, way := range offers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			r.cfg.BatchRows = 10
			if way.pieces {
				r.withoutInsert()
			}
			require.NoError(t, r.ownerStores(r.conn, 3, 10, 1, 2))
			r.run()
			r.tail.transaction(w(1), 3, 10)
			r.tail.transaction(w(2), 3, 10)
			r.awaitStored(w(2))
			r.exec(`update "replicationState" set "lastWatermark" = $1`, w(1))
			way.offer(r)
			require.ErrorIs(t, r.end(), changelog.ErrFellBack)
			require.Equal(t, w(1), r.head())
			require.Empty(t, r.assumed)
			r.requirePending()
		})
	}
}

// A newcomer that is told to stop leaves the log to its owner.
func TestNewcomerStops(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		r := newRival(t)
		require.NoError(t, r.ownerStores(r.conn, 3, 10, 1))
		r.run()
		r.tail.transaction(w(1), 3, 10)
		r.awaitStored(w(1))
		r.halt()
		r.requirePending()
	})
	for name, way := range offers {
		t.Run("while it waits "+name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			r.cfg.BatchRows = 10
			if way.pieces {
				r.withoutInsert()
			}
			release := r.lockState()
			way.offer(r)
			r.run()
			r.awaitWaiting()
			r.halt()
			release()
			r.requireNobodyWaits()
			r.requirePending()
		})
		t.Run("at once while it waits "+name, func(t *testing.T) {
			t.Parallel()
			r := newRival(t)
			r.cfg.BatchRows = 10
			r.cfg.DrainTimeout = time.Millisecond
			if way.pieces {
				r.withoutInsert()
			}
			release := r.lockState()
			way.offer(r)
			r.run()
			r.awaitWaiting()
			r.halt()
			release()
			r.requireNobodyWaits()
			r.requirePending()
		})
	}
	t.Run("while a large transaction arrives", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(_ *testing.T, r *rival) {
			r.cfg.BatchRows = 10
			r.run()
			r.tail.begin(w(1))
			for range 50 {
				r.tail.data(100)
			}
			r.tail.publish()
			r.awaitTail("passed", func(s state) bool { return s.passed == 51 })
			r.halt()
			r.requirePending()
		})
	})
	t.Run("in the middle of a large transaction", func(t *testing.T) {
		t.Parallel()
		rivalEachWay(t, func(t *testing.T, r *rival) {
			r.cfg.BatchRows = 10
			r.run()
			r.tail.begin(w(1))
			r.tail.data(10)
			r.tail.setFull(true)
			r.tail.publish()
			r.awaitTail("passed", func(s state) bool { return s.passed == 2 })
			r.proxy.block(toServer)
			for range 300 {
				r.tail.data(100_000) // more than fits on the way
				r.tail.publish()
			}
			r.tail.commit()
			r.stop()
			r.proxy.release(toServer)
			require.NoError(t, r.end())
			r.requirePending()
		})
	})
}

// requireNobodyWaits waits until the store's sessions have ended.
func (r *rival) requireNobodyWaits() {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		return r.text(`select count(*)::text from pg_stat_activity where datname = current_database()
			and application_name = 'zero-change-streamer'`) == "0"
	}, patience, 5*time.Millisecond)
}
