package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/gorilla/websocket"

	"millrace/streamer/wire"
)

// restoreAgain is the pause before a restore that came to nothing is tried again, and the
// longest one before another reservation is asked for.
const restoreAgain = 5 * time.Second

// Restore says what a subscriber without a usable copy of the data restores.
type Restore struct {
	BackupURL string
	// The copy must be of this history, and hold everything up to MinWatermark.
	ReplicaVersion string
	MinWatermark   string
}

// reservation is the connection that holds back the purge while the caller restores.
type reservation struct {
	ws      *websocket.Conn
	restore Restore
	ended   chan struct{} // closed when the reader has ended
}

// restore makes a reservation, has the caller restore, and stands at what that holds. It
// tries again until that is of the right history, and far enough.
func (c *Client) restore(ctx context.Context) error {
	pause := backoff{min: c.cfg.BackoffMin, max: min(c.cfg.BackoffMax, restoreAgain)}
	for {
		err := c.restoreOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if end := c.final(err); end != nil {
			return end
		}
		delay := pause.next()
		c.log.Log(ctx, severity(delay), "could not restore, trying again", "err", err, "duration", delay)
		if !sleep(ctx, delay) {
			return ctx.Err()
		}
	}
}

func (c *Client) restoreOnce(ctx context.Context) error {
	c.release()
	held, err := c.reserve(ctx)
	if err != nil {
		return err
	}
	at, err := c.cfg.Restore(ctx, held.restore)
	if err == nil {
		err = at.Check()
	}
	if err != nil {
		held.close()
		return &callbackError{fmt.Errorf("restore from %s: %w", held.restore.BackupURL, err)}
	}
	if at.ReplicaVersion != held.restore.ReplicaVersion || at.Watermark < held.restore.MinWatermark {
		held.close()
		return fmt.Errorf("what was restored is at watermark %s of replica version %s, and should be at %s of %s at least",
			at.Watermark, at.ReplicaVersion, held.restore.MinWatermark, held.restore.ReplicaVersion)
	}
	c.pos, c.moved, c.reserved = at, false, held
	return nil
}

// release ends the reservation, if there is one: the subscription has taken its place, or
// there will be another one.
func (c *Client) release() {
	if c.reserved != nil {
		c.reserved.close()
		c.reserved = nil
	}
}

// reserve asks for a reservation and waits until the server says what to restore, for as
// long as that takes.
func (c *Client) reserve(ctx context.Context) (*reservation, error) {
	server, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	access, err := c.access()
	if err != nil {
		return nil, err
	}
	target := *server
	target.Path = "/replication/v" + strconv.Itoa(c.cfg.Version) + "/snapshot"
	target.RawQuery = url.Values{"taskID": {c.cfg.TaskID}}.Encode()
	dialer := websocket.Dialer{HandshakeTimeout: c.cfg.Timeout, TLSClientConfig: access.tls}
	ws, response, err := dialer.DialContext(ctx, target.String(), access.header()) //nolint:bodyclose // the library has closed it
	if err != nil {
		return nil, refusedUpgrade(err, response, server)
	}
	r := &reservation{ws: ws, ended: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { _ = ws.Close() })
	if err := r.status(c.cfg.Liveness); err != nil {
		stop()
		_ = ws.Close() // it has nothing more to say
		close(r.ended)
		var closed *websocket.CloseError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &closed) && closed.Text == wire.BackupsNotConfigured:
			err = fmt.Errorf("%w: the server has no backup to offer (serve --backup-url): %w", ErrPermanent, err)
		}
		return nil, fmt.Errorf("ask %s what to restore: %w", server.Host, err)
	}
	c.log.InfoContext(ctx, "restoring", "address", server.Host, "watermark", r.restore.MinWatermark, "cause", r.restore.BackupURL)
	go r.hold(stop)
	return r, nil
}

// status reads the one message of a reservation, and acks it. The server's pings show that
// it is there.
func (r *reservation) status(silence time.Duration) error {
	alive := func() error { return r.ws.SetReadDeadline(time.Now().Add(silence)) }
	pong := r.ws.PingHandler()
	r.ws.SetPingHandler(func(data string) error {
		if err := alive(); err != nil {
			return err
		}
		return pong(data)
	})
	if err := alive(); err != nil {
		return err
	}
	_, text, err := r.ws.ReadMessage()
	if err != nil {
		return err
	}
	var frame struct {
		ID  uint64            `json:"id"`
		Msg []json.RawMessage `json:"msg"`
	}
	var body struct {
		BackupURL      string `json:"backupURL"`
		ReplicaVersion string `json:"replicaVersion"`
		MinWatermark   string `json:"minWatermark"`
	}
	if err := json.Unmarshal(text, &frame); err != nil {
		return violated("the status of a reservation is no message: %w", err)
	}
	if len(frame.Msg) != 2 {
		return violated("the status of a reservation has %d parts", len(frame.Msg))
	}
	if err := json.Unmarshal(frame.Msg[1], &body); err != nil {
		return violated("the status of a reservation is none: %w", err)
	}
	if body.BackupURL == "" || body.ReplicaVersion == "" || body.MinWatermark == "" {
		return violated("the status of a reservation is incomplete: %s", text)
	}
	r.restore = Restore(body)
	return r.ws.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"ack":%d}`, frame.ID))
}

// hold answers pings until the connection ends.
func (r *reservation) hold(stop func() bool) {
	defer close(r.ended)
	defer stop()
	for {
		if _, _, err := r.ws.NextReader(); err != nil {
			return
		}
	}
}

func (r *reservation) close() {
	_ = r.ws.Close() // the server has ended it, or sees it go
	<-r.ended
}

// startsOver says whether another copy of the data is the way out of an error, and there is
// a way to get one.
func (c *Client) startsOver(err error) bool {
	var refused *Refused
	return c.cfg.Restore != nil && errors.As(err, &refused) &&
		(refused.Type == WrongReplicaVersion || refused.Type == WatermarkTooOld)
}

// sleep waits for d. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
