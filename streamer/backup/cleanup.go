package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// cleanupEvery is how often the floor is worked out; what is found then is purged the next
// time, so that subscribers without a connection have the time to come back.
const cleanupEvery = 30 * time.Second

// Limits are what the log may be purged up to, as far as subscribers allow.
type Limits struct {
	Soft string // up to the position of the last subscriber at most
	Hard string // whoever is before it
	Why  string // what decides: backup or retention
}

// CleanupConfig is what a Cleanup needs. All but Every and Logger are required.
type CleanupConfig struct {
	Limits  func(ctx context.Context) (Limits, error)
	Holders *Holders
	// Purge deletes one step of what lies before a watermark. busy: not now.
	Purge func(ctx context.Context, before string) (deleted int64, done, busy bool, err error)
	// Report tells people of the floor, and what holds it.
	Report func(ctx context.Context, floor, holder string) error
	// Lost says of an error that the log is somebody else's: then nothing more is purged.
	Lost func(error) bool

	Every  time.Duration // 30 s if zero
	Logger *slog.Logger  // discards if nil
}

// Cleanup purges the log up to its floor.
type Cleanup struct {
	cfg    CleanupConfig
	log    *slog.Logger
	limits Limits // as of the last time
	purged string // the log was purged up to here
	held   string // the holder that was told of last
}

// NewCleanup checks cfg.
func NewCleanup(cfg CleanupConfig) (*Cleanup, error) {
	if cfg.Limits == nil || cfg.Holders == nil || cfg.Purge == nil || cfg.Report == nil || cfg.Lost == nil {
		return nil, errors.New("cleanup: Limits, Holders, Purge, Report and Lost are required")
	}
	if cfg.Every == 0 {
		cfg.Every = cleanupEvery
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Cleanup{cfg: cfg, log: cfg.Logger.With("component", "cleanup")}, nil
}

// Run purges now and then until ctx ends, the first time after twice the period. What goes
// wrong is logged and tried again. It returns an error only if the log is lost.
func (c *Cleanup) Run(ctx context.Context) error {
	ticker := time.NewTicker(c.cfg.Every)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		err := c.step(ctx)
		switch {
		case err == nil, ctx.Err() != nil:
		case c.cfg.Lost(err):
			return err
		default:
			c.log.WarnContext(ctx, "could not purge the log", "err", err)
		}
	}
}

// step purges up to what the limits were the last time.
func (c *Cleanup) step(ctx context.Context) error {
	limits := c.limits
	now, err := c.cfg.Limits(ctx)
	if err != nil {
		return fmt.Errorf("work out the floor: %w", err)
	}
	c.limits = now
	floor, holder := c.floor(limits)
	if floor == "" {
		return nil
	}
	if holder != c.held {
		if holder != limits.Why {
			c.log.InfoContext(ctx, "a subscriber holds back the purge", "cause", holder, "watermark", floor)
		}
		c.held = holder
	}
	if err := c.cfg.Report(ctx, floor, holder); err != nil {
		return fmt.Errorf("tell of the floor: %w", err)
	}
	if floor <= c.purged {
		return nil
	}
	var total int64
	for done := false; !done; {
		deleted, last, busy, err := c.cfg.Purge(ctx, floor)
		if err != nil {
			return fmt.Errorf("purge the log before %s: %w", floor, err)
		}
		if busy { // somebody makes a replica, or takes the log over
			c.log.DebugContext(ctx, "the log may not be purged now")
			return nil
		}
		total += deleted
		done = last
	}
	c.purged = floor
	if total > 0 {
		c.log.DebugContext(ctx, "purged the log", "watermark", floor, "rows", total)
	}
	return nil
}

// floor is up to where the log may be purged, and what holds it there.
func (c *Cleanup) floor(limits Limits) (floor, holder string) {
	floor, holder = limits.Soft, limits.Why
	if at, name, ok := c.cfg.Holders.Min(); ok && at < floor {
		floor, holder = at, name
	}
	if limits.Hard > floor {
		floor, holder = limits.Hard, limits.Why
	}
	return floor, holder
}
