package pgoutput_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/watermark"
)

// TestEveryTransactionOnce plays a log of transactions, some of them empty, over
// connections that break anywhere. Each connection starts again at some commit at or
// below what the sink has. The sink must end up with every transaction that has rows,
// once and whole, in order.
func TestEveryTransactionOnce(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.IntRange(0, 3), 1, 8).Draw(t, "rows of each transaction")
		var want []string
		for i, n := range rows {
			for row := range n {
				want = append(want, fmt.Sprintf(`%s:%d.%d`, watermark.Encode(lsnOf(i)), i, row))
			}
		}

		sink := &recorder{t: t}
		var got []string
		for done := 0; done < len(rows); {
			d := newDecoder(t, sink, pgoutput.Config{})
			shown := len(sink.messages)
			first := rapid.IntRange(0, done).Draw(t, "first")
			steps := rapid.IntRange(0, 24).Draw(t, "steps")
			next, broken := playFrom(t, d, rows, first, steps)
			done = max(done, next)
			// A transaction that was cut off is aborted: the sink forgets it.
			messages := sink.messages[shown:]
			if broken && sink.open != "" {
				sink.open = ""
				for len(messages) > 0 && messages[len(messages)-1][2] != 'c' {
					messages = messages[:len(messages)-1]
				}
				sink.messages = sink.messages[:shown+len(messages)]
			}
			if !d.InTransaction() && d.CommitLSN() != 0 && d.EmptyEnd() == 0 {
				require.Equal(t, watermark.FromLSN(d.CommitLSN()), sink.last)
			}
		}
		var at string
		for _, message := range sink.messages {
			var w, tx, row string
			switch message[2] {
			case 'b':
				_, err := fmt.Sscanf(message, `["begin",{"tag":"begin","json":"s"},{"commitWatermark":%q}]`, &w)
				require.NoError(t, err)
				require.Greater(t, w, at)
				at = w
			case 'd':
				_, err := fmt.Sscanf(message[len(message)-len(`"id":0,"code":"0","big":null}}]`):], `"id":%1s,"code":"%1s","big":null}}]`, &tx, &row)
				require.NoError(t, err)
				got = append(got, at+":"+tx+"."+row)
			}
		}
		require.Equal(t, want, got)
	})
}

func lsnOf(transaction int) uint64 { return uint64(100 * (transaction + 1)) }

// playFrom plays transactions from first on until steps messages were played or all
// is done. It returns how many transactions are done, and whether one was left open.
func playFrom(t *rapid.T, d *pgoutput.Decoder, rows []int, first, steps int) (done int, broken bool) {
	step := func(message []byte) bool {
		if steps == 0 {
			return false
		}
		steps--
		play(t, d, message)
		return true
	}
	play(t, d, item('d'))
	for i := first; i < len(rows); i++ {
		if !step(begin(lsnOf(i))) {
			return i, false
		}
		for row := range rows[i] {
			if !step(insertOf(1, tuple(fmt.Sprint(i), fmt.Sprint(row), nil))) {
				return i, true
			}
		}
		if !step(commit(lsnOf(i))) {
			return i, true
		}
	}
	return len(rows), false
}
