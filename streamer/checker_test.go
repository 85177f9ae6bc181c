package streamer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Checker is the first promise as a machine: it is told what upstream committed and what
// every subscriber received, and says where the two first disagree. It may be told in any
// order that can happen, also from several goroutines: what a subscriber receives before
// the commit is told is judged later, at the latest by Done.
//
// A subscription that is not refused must get every transaction behind its start exactly
// once, whole, in commit order, under one watermark, with the rows of one decoding.
type Checker struct {
	// Row returns what of a data message's change is compared; false: the change is no
	// row, such as a change of schema. The whole change if nil.
	Row func(change []byte) (string, bool)

	mu        sync.Mutex
	committed []committed
	index     map[string]int // by watermark
	subs      []*Watched
	err       error

	transactions, messages, rollbacks int
}

// committed is a transaction of upstream and all the ways in which it may be decoded.
type committed struct {
	watermark string // "" until a subscriber has shown it
	decodings [][]string
}

// Committed says that upstream committed a transaction of these rows, after all those
// told before. If watermark is "" the first subscriber that gets it tells.
func (c *Checker) Committed(watermark string, rows ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.committed); n > 0 && watermark != "" && watermark <= c.committed[n-1].watermark {
		c.fail("upstream: %s was committed after %s", watermark, c.committed[n-1].watermark)
	}
	c.committed = append(c.committed, committed{watermark, [][]string{rows}})
	if watermark != "" {
		c.learn(watermark, len(c.committed)-1)
	}
}

// Also says that the transaction committed last may be decoded into these rows, too.
func (c *Checker) Also(rows ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := &c.committed[len(c.committed)-1]
	last.decodings = append(last.decodings, rows)
}

func (c *Checker) learn(watermark string, i int) {
	if c.index == nil {
		c.index = map[string]int{}
	}
	c.index[watermark] = i
}

// Subscriber opens a subscription behind the commit at start.
func (c *Checker) Subscriber(name, start string) *Watched {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &Watched{c: c, name: name, start: start, whole: start, due: -1}
	c.subs = append(c.subs, w)
	return w
}

// Err is the first violation, or nil.
func (c *Checker) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done says that every subscription which has not ended must have everything up to the
// commit at upTo by now, or everything if upTo is "". It returns the first violation; what
// is only missing yet is forgotten again, so Done may be asked until it is content.
func (c *Checker) Done(upTo string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.subs {
		w.judge(true)
		if w.ended || c.err != nil {
			continue
		}
		if w.due < 0 {
			w.due = c.behind(w.start)
		}
		if w.due < len(c.committed) && (upTo == "" || c.committed[w.due].watermark <= upTo) {
			return fmt.Errorf("%s: transaction %d at %q is missing; the last one received is %s",
				w.name, w.due, c.committed[w.due].watermark, w.whole)
		}
		if w.inside && upTo == "" {
			return fmt.Errorf("%s: the transaction at %s has no end", w.name, w.open.watermark)
		}
	}
	return c.err
}

// behind is the index of the first transaction behind the commit at start.
func (c *Checker) behind(start string) int {
	for i, tx := range c.committed {
		if tx.watermark == "" || tx.watermark > start {
			return i
		}
	}
	return len(c.committed)
}

func (c *Checker) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// Watched is one subscription under the checker's eyes.
type Watched struct {
	c           *Checker
	name, start string

	inside   bool
	open     received // the transaction it is inside of
	whole    string   // the last commit received
	unjudged []received
	due      int // index of the transaction that must come next; -1 until it is known
	ended    bool
	count    int
}

type received struct {
	watermark string
	rows      []string
}

// Whole is the watermark of the last transaction received whole.
func (w *Watched) Whole() string {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.whole
}

// End says that the subscription is over: nothing more is expected of it.
func (w *Watched) End() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.ended, w.inside = true, false
}

// Message takes the next message of the subscription, without its frame. It returns the
// first violation of all.
func (w *Watched) Message(message []byte) error {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if err := w.take(message); err != nil {
		w.c.fail("%s, message %d, %.120s: %w", w.name, w.count, message, err)
	}
	w.count++
	w.c.messages++
	w.judge(false)
	return w.c.err
}

func (w *Watched) take(message []byte) error {
	if w.ended {
		return errors.New("a message after the end")
	}
	kind, change, position, err := parts(message)
	if err != nil {
		return err
	}
	if (kind == "data" || kind == "commit" || kind == "rollback") && !w.inside {
		return errors.New("outside a transaction")
	}
	switch kind {
	case "status":
	case "begin":
		if w.inside {
			return fmt.Errorf("inside the transaction at %s", w.open.watermark)
		}
		if position.CommitWatermark <= w.whole {
			return fmt.Errorf("twice or out of order: %s was received before", w.whole)
		}
		w.inside, w.open = true, received{watermark: position.CommitWatermark}
	case "data":
		row, ok := string(change), true
		if w.c.Row != nil {
			row, ok = w.c.Row(change)
		}
		if ok {
			w.open.rows = append(w.open.rows, row)
		}
	case "commit":
		if position.Watermark != w.open.watermark {
			return fmt.Errorf("the transaction began at %s", w.open.watermark)
		}
		w.inside, w.whole = false, w.open.watermark
		w.unjudged = append(w.unjudged, w.open)
	case "rollback":
		w.inside = false
		w.c.rollbacks++
	default:
		return errors.New("unknown message")
	}
	return nil
}

type position struct {
	CommitWatermark string `json:"commitWatermark"`
	Watermark       string `json:"watermark"`
}

// parts takes a message to pieces and checks that its form is the canonical one.
func parts(message []byte) (kind string, change json.RawMessage, at position, err error) {
	var piece []json.RawMessage
	if err := json.Unmarshal(message, &piece); err != nil || len(piece) < 2 || len(piece) > 3 {
		return "", nil, at, errors.New("not a message")
	}
	if err := json.Unmarshal(piece[0], &kind); err != nil {
		return "", nil, at, errors.New("not a message")
	}
	if want := bytes.Join([][]byte{[]byte("["), bytes.Join(rawBytes(piece), []byte(",")), []byte("]")}, nil); !bytes.Equal(message, want) {
		return "", nil, at, errors.New("not canonical: blanks in it")
	}
	if third := kind == "begin" || kind == "commit"; third != (len(piece) == 3) {
		return "", nil, at, fmt.Errorf("a %s of %d parts", kind, len(piece))
	}
	if len(piece) == 3 {
		if err := json.Unmarshal(piece[2], &at); err != nil {
			return "", nil, at, errors.New("a position that is none")
		}
	}
	return kind, piece[1], at, nil
}

func rawBytes(pieces []json.RawMessage) [][]byte {
	b := make([][]byte, len(pieces))
	for i, p := range pieces {
		b[i] = p
	}
	return b
}

// judge compares what was received with what is known to be committed; final: all is.
func (w *Watched) judge(final bool) {
	c := w.c
	for len(w.unjudged) > 0 {
		got := w.unjudged[0]
		due := w.due
		if due < 0 {
			due = c.behind(w.start)
		}
		if due >= len(c.committed) { // nothing behind the start is known yet, or nothing more
			if final {
				c.fail("%s: the transaction at %s was never committed", w.name, got.watermark)
			}
			return
		}
		w.due = due
		want := &c.committed[w.due]
		switch {
		case want.watermark == "":
			if _, known := c.index[got.watermark]; known {
				c.fail("%s: transaction %d is missing before %s", w.name, w.due, got.watermark)
				return
			}
			want.watermark = got.watermark
			c.learn(got.watermark, w.due)
		case want.watermark < got.watermark:
			c.fail("%s: the transaction at %s is missing before %s", w.name, want.watermark, got.watermark)
			return
		case want.watermark > got.watermark:
			c.fail("%s: the transaction at %s was never committed", w.name, got.watermark)
			return
		}
		if err := agree(got.rows, want.decodings); err != nil {
			c.fail("%s: the transaction at %s: %w", w.name, got.watermark, err)
			return
		}
		c.transactions++
		w.due++
		w.unjudged = w.unjudged[1:]
	}
}

// agree says where the rows differ from the decoding that they share most rows with.
func agree(got []string, decodings [][]string) error {
	var closest []string
	best := -1
	for _, want := range decodings {
		n := 0
		for n < len(got) && n < len(want) && got[n] == want[n] {
			n++
		}
		if n == len(got) && n == len(want) {
			return nil
		}
		if n > best {
			best, closest = n, want
		}
	}
	if best < len(got) && best < len(closest) {
		return fmt.Errorf("row %d of %d is %.80q, want %.80q", best, len(got), got[best], closest[best])
	}
	return fmt.Errorf("it has %d rows, want %d", len(got), len(closest))
}

// TestCheckerRefutes shows the checker one fault of each sort: a checker that accepts
// everything would make all other tests worthless.
func TestCheckerRefutes(t *testing.T) {
	t.Parallel()
	begin := func(w string) string { return `["begin",{"tag":"begin"},{"commitWatermark":"` + w + `"}]` }
	data := func(c string) string { return `["data",` + c + `]` }
	commit := func(w string) string { return `["commit",{"tag":"commit"},{"watermark":"` + w + `"}]` }
	const rollback, status = `["rollback",{"tag":"rollback"}]`, `["status",{"tag":"status"}]`
	first := []string{begin("01"), data(`1`), data(`2`), commit("01")}
	second := []string{begin("02"), data(`3`), commit("02")}
	tests := []struct {
		name     string
		messages [][]string
		want     string // "" if the checker must be content
	}{
		{"all of it", [][]string{{status}, first, second}, ""},
		{"the other decoding", [][]string{first, {begin("02"), data(`4`), data(`5`), commit("02")}}, ""},
		{"cut off and sent again", [][]string{first, {begin("02"), data(`9`), rollback}, second}, ""},
		{"a part of a transaction", [][]string{first, {begin("02"), commit("02")}}, "has 0 rows, want 1"},
		{"a row too many", [][]string{first, {begin("02"), data(`3`), data(`3`), commit("02")}}, "has 2 rows, want 1"},
		{"rows in the wrong order", [][]string{{begin("01"), data(`2`), data(`1`), commit("01")}}, "row 0 of 2"},
		{"two decodings mixed", [][]string{first, {begin("02"), data(`4`), data(`3`), commit("02")}}, "row 1 of 2"},
		{"one missing", [][]string{second}, "at 01 is missing before 02"},
		{"the last missing", [][]string{first}, `at "02" is missing`},
		{"twice", [][]string{first, first}, "twice or out of order"},
		{"a watermark that does not rise", [][]string{first, second, first}, "twice or out of order"},
		{"never committed", [][]string{first, second, {begin("03"), commit("03")}}, "at 03 was never committed"},
		{"never committed, between", [][]string{first, {begin("01.01"), commit("01.01")}}, "at 01.01 was never committed"},
		{"begin inside", [][]string{first, {begin("02"), begin("02")}}, "inside the transaction at 02"},
		{"data outside", [][]string{{data(`1`)}}, "outside a transaction"},
		{"rollback outside", [][]string{first, {rollback}}, "outside a transaction"},
		{"commit of another", [][]string{{begin("01"), data(`1`), data(`2`), commit("02")}}, "began at 01"},
		{"no end", [][]string{first, second, {begin("03")}}, "has no end"},
		{"blanks", [][]string{{`["status", {"tag":"status"}]`}}, "not canonical"},
		{"no message", [][]string{{`{}`}}, "not a message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var c Checker
			w := c.Subscriber("s", "00")
			c.Committed("01", `1`, `2`)
			c.Committed("02", `3`)
			c.Also(`4`, `5`)
			for _, list := range tt.messages {
				for _, m := range list {
					_ = w.Message([]byte(m)) // what it says is what Done says
				}
			}
			err := c.Done("")
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}

func TestCheckerLearnsWatermarks(t *testing.T) {
	t.Parallel()
	var c Checker
	a, b := c.Subscriber("a", "00"), c.Subscriber("b", "00")
	for _, m := range []string{`["begin",{},{"commitWatermark":"05"}]`, `["data",1]`, `["commit",{},{"watermark":"05"}]`} {
		require.NoError(t, a.Message([]byte(m))) // before the test says that it was committed
	}
	c.Committed("", `1`)
	c.Committed("", `2`)
	require.ErrorContains(t, c.Done(""), "transaction 1 at \"\" is missing")
	for _, m := range []string{`["begin",{},{"commitWatermark":"06"}]`, `["data",1]`, `["commit",{},{"watermark":"06"}]`} {
		_ = b.Message([]byte(m))
	}
	require.ErrorContains(t, c.Err(), "at 05 is missing before 06")
}

func TestCheckerIsToldLate(t *testing.T) {
	t.Parallel()
	var c Checker
	w := c.Subscriber("joined at 02", "02")
	for _, m := range []string{`["begin",{},{"commitWatermark":"03"}]`, `["data",3]`, `["commit",{},{"watermark":"03"}]`} {
		require.NoError(t, w.Message([]byte(m)))
	}
	for _, watermark := range []string{"01", "02", "03"} { // only the third is behind the start
		c.Committed(watermark, watermark[1:])
		require.NoError(t, w.Message([]byte(`["status",{}]`)))
	}
	require.NoError(t, c.Done(""))
}
