package postgres

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

const (
	// postgresEpoch is 2000-01-01 in microseconds from 1970.
	postgresEpoch = 946_684_800_000_000

	statusBytes    = 1 + 3*8 + 8 + 1
	keepaliveBytes = 1 + 8 + 8 + 1
	dataHeader     = 1 + 3*8

	maxHeartbeat = 10 * time.Second
	minSilence   = 10 * time.Second
	minTick      = 10 * time.Millisecond

	// shutdownGrace is how long a server that shuts down may wait for us: see urge.
	shutdownGrace = 5 * time.Second

	// roomLook is how often a source that has no room looks after the server.
	roomLook = 5 * time.Second
)

// appendStatus appends a CopyData message with a standby status update: written, flushed
// and applied are all confirmed.
func appendStatus(dst []byte, confirmed pglogrepl.LSN, now time.Time, reply bool) []byte {
	dst = append(dst, 'd')
	dst = binary.BigEndian.AppendUint32(dst, 4+statusBytes)
	dst = append(dst, 'r')
	for range 3 {
		dst = binary.BigEndian.AppendUint64(dst, uint64(confirmed))
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(now.UnixMicro()-postgresEpoch)) //nolint:gosec // after 2000
	if reply {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// keepalive is a server's message that it is alive.
type keepalive struct {
	end   pglogrepl.LSN // everything up to it has been sent
	reply bool          // it wants to hear from us now
}

func parseKeepalive(b []byte) (keepalive, error) {
	if len(b) != keepaliveBytes {
		return keepalive{}, fmt.Errorf("keepalive of %d bytes instead of %d", len(b), keepaliveBytes)
	}
	return keepalive{end: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])), reply: b[keepaliveBytes-1] == 1}, nil
}

// pace is how often things are done on a connection.
type pace struct {
	tick      time.Duration // look whether there is something to do
	heartbeat time.Duration // let the server hear from us, at the latest
	silence   time.Duration // hear nothing from the server, at most; 0 is for ever
	write     time.Duration // one status update may take
}

// newPace makes the pace that goes with the server's wal_sender_timeout (0: it never
// gives us up). Every heartbeat asks for an answer, so that silence means something:
// a server that hears from us often enough sends nothing of its own accord.
func newPace(senderTimeout, statusEvery, silence time.Duration) pace {
	p := pace{heartbeat: maxHeartbeat, silence: silence, write: minSilence}
	if senderTimeout > 0 {
		p.heartbeat = min(maxHeartbeat, senderTimeout/4)
		if p.silence == 0 {
			p.silence = max(minSilence, 2*senderTimeout)
		}
	} else {
		p.silence = 0
	}
	p.tick = max(minTick, min(statusEvery, p.heartbeat/2))
	return p
}

// urge tells a server that shuts down from one that wants to know whether we are alive. A
// server ends its walsenders last, and only when everything it has sent is confirmed;
// until then it asks again as soon as we have answered. That may be never: the change log
// may live on that very server and be gone already. So after a while we leave.
type urge struct {
	since, last time.Time
}

// asked notes that the server asked for an answer although it had heard from us, and says
// whether it has been doing so for long. It may not be heard asking again for as long as
// gap.
func (u *urge) asked(now time.Time, gap time.Duration) bool {
	if now.Sub(u.last) > gap {
		u.since = now
	}
	u.last = now
	return now.Sub(u.since) >= shutdownGrace
}
