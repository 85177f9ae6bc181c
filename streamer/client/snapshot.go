package client

import (
	"context"
	"fmt"

	"millrace/streamer/change"
	"millrace/streamer/snapshot"
)

// SnapshotPosition is where the snapshot in a folder stands.
func SnapshotPosition(folder string) (Position, error) {
	reader, err := snapshot.Open(folder)
	if err != nil {
		return Position{}, err
	}
	return position(reader), nil
}

func position(reader *snapshot.Reader) Position {
	m := reader.Manifest()
	return Position{ReplicaVersion: m.ReplicaVersion, Watermark: m.Watermark}
}

// load hands the rows of the snapshot over, and then stands behind them. If it ends inside
// them, Handler is given a rollback.
func (c *Client) load(ctx context.Context) error {
	reader, err := snapshot.Open(c.cfg.Snapshot)
	if err != nil {
		return err
	}
	if err := reader.Verify(ctx); err != nil {
		return err
	}
	at := position(reader)
	open := false
	var own error // of the handler
	replay := snapshot.ReplayConfig{
		Undecodable: c.undecodable(ctx),
		Message: func(kind change.Kind, message []byte) error {
			open = kind != change.Commit
			own = c.cfg.Handler(ctx, Message{Bytes: message, Kind: kinds[kind], Watermark: at.Watermark})
			return own
		},
	}
	replay.Options.NonFiniteString = c.cfg.NonFiniteStrings
	err = reader.Replay(ctx, replay)
	switch {
	case own != nil:
		return own
	case err != nil && open:
		if own = c.rollBack(ctx, at); own != nil {
			return own
		}
		return err
	case err != nil:
		return err
	}
	c.pos = at
	// A commit that was handled is persisted, whatever happens meanwhile.
	if c.cfg.Persist != nil {
		if err := c.cfg.Persist(context.WithoutCancel(ctx), at); err != nil {
			return fmt.Errorf("persist watermark %s: %w", at.Watermark, err)
		}
	}
	return c.idle()
}

var kinds = map[change.Kind]Kind{change.Begin: Begin, change.Data: Data, change.Commit: Commit}

// rollBack ends for the handler what will not be whole.
func (c *Client) rollBack(ctx context.Context, at Position) error {
	m := Message{Bytes: []byte(change.Rollback), Kind: Rollback, Watermark: at.Watermark}
	if err := c.cfg.Handler(context.WithoutCancel(ctx), m); err != nil {
		return err
	}
	return c.idle()
}

func (c *Client) idle() error {
	if c.cfg.Idle == nil {
		return nil
	}
	return c.cfg.Idle()
}

// undecodable logs the first such value of each column.
func (c *Client) undecodable(ctx context.Context) func(schema, table, column string) {
	reported := map[string]bool{}
	return func(schema, table, column string) {
		name := schema + "." + table + "." + column
		if !reported[name] {
			reported[name] = true
			c.log.WarnContext(ctx, "value could not be decoded", "cause", name)
		}
	}
}
