package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"millrace/streamer/backup"
	"millrace/streamer/subscriber"
	"millrace/streamer/wire"
)

// errReleased ends the connection of a reservation that has ended.
var errReleased = errors.New("the reservation has ended")

// Restore is what the holder of a reservation restores.
type Restore struct {
	*backup.Reservation
	BackupURL string
}

// reserved is the one message of a reservation, as what a connection sends.
type reserved struct {
	restore Restore
	version int
	message []byte // to be sent
	told    atomic.Bool
	ended   bool
}

// Next returns the status once it is known, and the end once that has come.
func (r *reserved) Next() (frames subscriber.Frames, ok bool, err error) {
	switch {
	case r.message != nil:
		frames = subscriber.Frames{Literal: r.message, FirstID: 1}
		r.message = nil
		return frames, true, nil
	case r.ended:
		return frames, false, errReleased
	}
	return frames, false, nil
}

// Wait waits for one or the other.
func (r *reserved) Wait(ctx context.Context) error {
	select {
	case status := <-r.restore.Confirmed():
		message, err := r.status(status)
		if err != nil {
			return err
		}
		r.message = message
		r.told.Store(true)
	case <-r.restore.Ended():
		r.ended = true
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

func (r *reserved) status(status backup.Status) ([]byte, error) {
	body := struct {
		Tag            string `json:"tag"`
		BackupURL      string `json:"backupURL"`
		ReplicaVersion string `json:"replicaVersion,omitempty"`
		MinWatermark   string `json:"minWatermark,omitempty"`
	}{Tag: "status", BackupURL: r.restore.BackupURL}
	if r.version > wire.SnapshotVersionWithoutBounds {
		body.ReplicaVersion, body.MinWatermark = status.ReplicaVersion, status.Watermark
	}
	return json.Marshal([]any{"status", body})
}

// Ack takes the ack of the status. There is nothing else to be acked.
func (r *reserved) Ack(id uint64) error {
	if !r.told.Load() || id != 1 {
		return fmt.Errorf("ack of frame %d, which was not sent", id)
	}
	return nil
}

// Idle is never: a restore takes its time.
func (r *reserved) Idle(time.Time) time.Duration { return 0 }

// Version is the subscriber's protocol version.
func (r *reserved) Version() int { return r.version }
