package pgoutput

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pglogrepl"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
)

const (
	beginChange  = `{"tag":"begin","json":"s"}`
	commitChange = `{"tag":"commit","commitTimeMs":`

	// frameSize is enough for a begin or commit message.
	frameSize = 160

	// epochMicros is 2000-01-01, where Postgres counts from, in microseconds from 1970.
	epochMicros = 946_684_800_000_000
)

var errNotOpen = errors.New("no transaction is open")

// transaction is the one that is open.
type transaction struct {
	open      bool
	skip      bool // the sink has it already: nothing of it is decoded
	begun     bool // begin was given to the sink
	final     pglogrepl.LSN
	watermark string
	rows      int
}

// begin opens a transaction. The sink learns of it with its first change.
func (d *Decoder) begin(r *reader) error {
	final := r.lsn()
	r.uint64() // the time of the commit, which the commit repeats
	r.uint32() // the transaction's id upstream
	if err := r.end(); err != nil {
		return err
	}
	if d.tx.open {
		return fmt.Errorf("the transaction that commits at %s is still open", d.tx.final)
	}
	w := watermark.FromLSN(final)
	d.tx = transaction{open: true, skip: w <= d.sink.Last(), final: final, watermark: w}
	return nil
}

// commit ends a transaction.
func (d *Decoder) commit(r *reader) error {
	r.uint8() // flags, of which there are none
	lsn, end := r.lsn(), r.lsn()
	micros := int64(r.uint64()) + epochMicros //nolint:gosec // the server's number is signed
	if err := r.end(); err != nil {
		return err
	}
	if !d.tx.open {
		return errNotOpen
	}
	if lsn != d.tx.final {
		return fmt.Errorf("it is at %s, but its transaction began with %s", lsn, d.tx.final)
	}
	if d.tx.begun {
		message := append(d.sink.Spare(frameSize), `["commit",`+commitChange...)
		message = strconv.AppendInt(message, floorMillis(micros), 10)
		message = append(message, `},{"watermark":"`...)
		message = append(message, d.tx.watermark...)
		d.sink.Commit(append(message, `"}]`...))
		d.commits++
	}
	d.empty = !d.tx.begun
	d.commitLSN, d.endLSN = lsn, end
	d.tx = transaction{}
	return nil
}

// change is called before each change. It answers false if the change is to be left out.
func (d *Decoder) change() (wanted bool, err error) {
	if !d.tx.open {
		return false, errNotOpen
	}
	return !d.tx.skip, nil
}

// space returns room for a message of about n bytes, behind begin if this is the first
// change.
func (d *Decoder) space(n int) []byte {
	if !d.tx.begun {
		d.tx.begun = true
		message := change.Append(d.sink.Spare(frameSize), change.Begin, []byte(beginChange), d.tx.watermark)
		d.sink.Begin(message, d.tx.watermark)
	}
	return d.sink.Spare(min(n, d.cfg.MaxMessage))
}

// give hands the change to the sink.
func (d *Decoder) give(message []byte, tag change.Tag) {
	d.sink.Data(message, tag)
	d.tx.rows++
}

func floorMillis(micros int64) int64 {
	millis := micros / 1000
	if micros%1000 < 0 {
		millis--
	}
	return millis
}
