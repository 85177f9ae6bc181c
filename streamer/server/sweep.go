package server

import (
	"context"
	"fmt"
	"time"

	"millrace/streamer/wire"
)

// sweep looks at all connections again and again, until ctx ends: pings, who is silent,
// who acks nothing. It never waits for one.
func (s *Server) sweep(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.SweepEvery)
	defer ticker.Stop()
	var conns []*conn
	for {
		var now time.Time
		select {
		case <-ctx.Done():
			return
		case now = <-ticker.C:
		}
		s.mu.Lock()
		for c := range s.conns {
			conns = append(conns, c)
		}
		s.mu.Unlock()
		for _, c := range conns {
			c.sweep(now)
		}
		clear(conns)
		conns = conns[:0]
	}
}

func (c *conn) sweep(now time.Time) {
	c.account()
	if !now.Before(c.nextPing) {
		c.nextPing = now.Add(c.server.cfg.PingEvery)
		if !c.alive.Swap(false) && !c.moving(now, c.server.cfg.PingEvery) {
			c.terminate(errSilent)
			return
		}
		c.ping()
	}
	if c.sub == nil || c.ctx.Err() != nil {
		return
	}
	cfg := &c.server.cfg
	limit := cfg.SubscriberGrace
	if cfg.GiveUp > 0 {
		limit = cfg.GiveUp
	}
	lag := c.sub.Idle(now)
	if limit == 0 || lag < limit || c.moving(now, limit) {
		return
	}
	if cfg.GiveUp > 0 {
		c.server.refused(reasonOf(&wire.ErrorMessage{Type: wire.TypeStreamTooFarBehind}))
		c.stop(wire.StreamTooFarBehind(limit, lag))
		return
	}
	c.stop(fmt.Errorf("%w for %s", errLags, lag))
}

// moving says that a piece of a large message went out not long ago. Such a message takes
// its time on a slow link; as long as it moves, the peer is neither dead nor late [R26].
func (c *conn) moving(now time.Time, within time.Duration) bool {
	moved := c.out.progress.Load()
	return moved != 0 && now.Sub(time.Unix(0, moved)) < within
}
