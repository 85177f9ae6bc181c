// Package postgres is a change source: one replication slot of a PostgreSQL upstream.
//
// A Source keeps one walsender connection and turns what comes into messages for its
// sink. It promises that a transaction is given whole and once, in commit order, that
// nothing is confirmed upstream that was not confirmed here, that the server hears from
// it often enough whatever the sink does, and that no stream is used before the caller
// has checked that it may be [R11]. It reconnects by itself and returns only when it is
// told to stop, or when trying again cannot help.
//
// An Upstream is what is done before and around a stream: looking whether the server is
// fit for it, and making, watching and dropping publications and slots. Publications come
// before slots: the stream of a slot knows them as they were at each change.
//
// # Positions
//
// A transaction's watermark is the LSN of its commit record. The stream behind watermark
// W starts at W + 1, and what is confirmed for W is W + 1. A keepalive at p shows all
// commits up to p - 1; the next commit may begin at p [R2].
//
//	connect ─ identify ─ START_REPLICATION ─ Check ─┬─ receive ─ decode ─ sink
//	   ▲                                            │     │
//	   │                              status updates┘     │ anything wrong
//	   └──────── backoff ◄─── Abort, Publish ◄────────────┘
//
// The walsender connection belongs to one goroutine, the one that called Run. It is woken
// for status updates by the connection's read deadline; a deadline that passes in the
// middle of a message loses nothing.
package postgres
