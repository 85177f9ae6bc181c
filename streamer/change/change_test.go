package change_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/change"
	"millrace/streamer/watermark"
)

func TestAppendAndStoredAreInverses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		kind    change.Kind
		change  string
		message string
	}{
		{
			"begin with flags", change.Begin, `{"tag":"begin","json":"s","skipAck":true}`,
			`["begin",{"tag":"begin","json":"s","skipAck":true},{"commitWatermark":"a.01"}]`,
		},
		{
			"insert with big integers and escapes", change.Data,
			`{"tag":"insert","new":{"n":[9223372036854775807,{"deep":12345678901234567890123}],"s":"\u0000\"],{\"watermark\":\"b\"}]"}}`,
			`["data",{"tag":"insert","new":{"n":[9223372036854775807,{"deep":12345678901234567890123}],"s":"\u0000\"],{\"watermark\":\"b\"}]"}}]`,
		},
		{
			"rename", change.Data, `{"tag":"rename-table","old":{"schema":"a","name":"b"},"new":{"schema":"a","name":"c,]"}}`,
			`["data",{"tag":"rename-table","old":{"schema":"a","name":"b"},"new":{"schema":"a","name":"c,]"}}]`,
		},
		{
			"truncate of two", change.Data, `{"tag":"truncate","relations":[{"name":"a"},{"name":"b"}]}`,
			`["data",{"tag":"truncate","relations":[{"name":"a"},{"name":"b"}]}]`,
		},
		{
			"backfill without columns", change.Data, `{"tag":"backfill","columns":[],"rowValues":[]}`,
			`["data",{"tag":"backfill","columns":[],"rowValues":[]}]`,
		},
		{"commit", change.Commit, `{"tag":"commit"}`, `["commit",{"tag":"commit"},{"watermark":"a.01"}]`},
		{"nothing", change.Data, ``, `["data",]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := change.Append([]byte("before"), tt.kind, []byte(tt.change), "a.01")
			require.Equal(t, "before"+tt.message, string(m))
			require.Equal(t, tt.change, string(change.Stored(tt.kind, []byte(tt.message), "a.01")))
			require.Equal(t, len(tt.message)-len(tt.change), change.Envelope(tt.kind, "a.01"))
		})
	}
	require.True(t, json.Valid([]byte(change.Rollback)))
}

func TestAppendAndStoredAreInversesOfAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kind := change.Kind(rapid.IntRange(0, 2).Draw(t, "kind"))
		text := rapid.SliceOf(rapid.Byte()).Draw(t, "change")
		w := watermark.WithMinor(watermark.Encode(rapid.Uint64().Draw(t, "major")), rapid.Uint64().Draw(t, "minor"))
		m := change.Append(nil, kind, text, w)
		require.True(t, bytes.Equal(text, change.Stored(kind, m, w)))
		require.Len(t, m, len(text)+change.Envelope(kind, w))
		require.Equal(t, m, change.Append(nil, kind, change.Stored(kind, m, w), w))
	})
}

func TestParseTag(t *testing.T) {
	t.Parallel()
	for tag := change.Insert; tag <= change.BackfillCompleted; tag++ {
		require.NotEqual(t, "other", tag.String())
		for _, text := range []string{
			`{"tag":"` + tag.String() + `"}`,
			`{"tag":"` + tag.String() + `","relation":{"tag":"insert"}}`,
			`{"relation":{"tag":"insert"},"tag":"` + tag.String() + `"}`,
			` { "tag" : "` + tag.String() + `" }`,
			`{"new":{"\"tag\":\"x":1},"tag":"` + tag.String() + `"}`,
		} {
			require.Equal(t, tag, change.ParseTag([]byte(text)), text)
		}
	}
	for _, text := range []string{``, `{}`, `{"tag":"`, `{"tag":""}`, `{"tag":"vacuum"}`, `{"tag":7}`, `[]`, `{"new":{"tag":"insert"}}`} {
		require.Equal(t, change.Other, change.ParseTag([]byte(text)), text)
	}
	require.Equal(t, "other", change.Other.String())
	require.Equal(t, "other", change.Tag(200).String())
}

func FuzzParseTag(f *testing.F) {
	f.Add([]byte(`{"relation":{},"tag":"insert"}`))
	f.Add([]byte(`{"tag":"update"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if tag := change.ParseTag(text); tag != change.Other {
			require.Contains(t, string(text), "t") // it named one
			require.NotEqual(t, "other", tag.String())
		}
	})
}

// message is what a block's model holds.
type message struct {
	text    string
	kind    change.Kind
	tag     change.Tag
	w       string
	attempt int64
	pos     int64
}

func TestBlockIsItsMessages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seq := rapid.Int64Range(0, 1000).Draw(t, "seq")
		b := change.NewBlock(seq, rapid.IntRange(0, 300).Draw(t, "size"), rapid.IntRange(0, 9).Draw(t, "entries"))
		if rapid.Bool().Draw(t, "used before") {
			b.Add([]byte("old"), change.Data, change.Other, change.Tx{Watermark: "old", Attempt: 99})
			b.Reset(seq)
		}
		var model []message
		attempt, pos := seq, int64(rapid.IntRange(0, 5).Draw(t, "first pos")) // a block may begin inside
		for range rapid.IntRange(0, 30).Draw(t, "messages") {
			m := message{
				text: strings.Repeat("m", rapid.IntRange(0, 40).Draw(t, "length")), kind: change.Data,
				tag: change.Tag(rapid.IntRange(0, 15).Draw(t, "tag")), w: fmt.Sprint("w", attempt), attempt: attempt, pos: pos,
			}
			if rapid.IntRange(0, 3).Draw(t, "commit") == 0 {
				m.kind = change.Commit
			}
			text := []byte(m.text)
			if rapid.Bool().Draw(t, "in place") {
				text = append(b.Spare(), m.text...) // moves if there is no room
			}
			b.Add(text, m.kind, m.tag, change.Tx{Watermark: m.w, Attempt: m.attempt, Pos: m.pos})
			model = append(model, m)
			if pos++; m.kind == change.Commit {
				attempt, pos = seq+int64(len(model)), 0
			}
		}
		require.Equal(t, len(model), b.Len())
		require.GreaterOrEqual(t, b.Size(), int64(b.Len()*8))

		from := rapid.IntRange(0, len(model)).Draw(t, "from")
		to := rapid.IntRange(from, len(model)).Draw(t, "to")
		run := b.Run(from, to)
		sameAs(t, run, seq+int64(from), model[from:to])
		i := rapid.IntRange(0, to-from).Draw(t, "cut from")
		j := rapid.IntRange(i, to-from).Draw(t, "cut to")
		sameAs(t, run.Cut(i, j), seq+int64(from+i), model[from+i:from+j])
	})
}

func sameAs(t require.TestingT, run change.Run, seq int64, model []message) {
	require.Equal(t, len(model), run.Len())
	require.Equal(t, seq, run.Seq)
	require.Equal(t, seq+int64(len(model)), run.Next())
	bytes := 0
	for i, m := range model {
		bytes += len(m.text)
		require.Equal(t, m.text, string(run.Message(i)))
		require.Equal(t, m.kind, run.Entry(i).Kind)
		require.Equal(t, m.tag, run.Entry(i).Tag)
		require.Equal(t, m.w, run.Tx(i).Watermark)
		require.Equal(t, m.attempt, run.Tx(i).Attempt)
		require.Equal(t, m.pos, run.Pos(i))
		end := i
		for end < len(model) && model[end].attempt == m.attempt {
			end++
		}
		require.Equal(t, end, run.TxEnd(i))
		want := watermark.Position{Watermark: m.w, Pos: m.pos}
		if m.kind == change.Commit {
			want = watermark.After(m.w)
		}
		require.Equal(t, want, run.After(i))
	}
	require.Equal(t, bytes, run.Bytes())
}

// A message that outgrew the space it asked for has moved; what it left behind in the
// block's spare space must not be taken for part of it.
func TestMessageThatMovedIsCopied(t *testing.T) {
	t.Parallel()
	b := change.NewBlock(0, 16, 4)
	b.Add([]byte("first"), change.Data, change.Other, change.Tx{})
	moved := append(b.Spare(), "eleven byte"...)
	moved = append(moved, " and more"...) // now it is elsewhere
	b.Add(moved, change.Data, change.Other, change.Tx{})
	b.Add([]byte("third"), change.Data, change.Other, change.Tx{})
	run := b.Run(0, 3)
	require.Equal(t, "first", string(run.Message(0)))
	require.Equal(t, "eleven byte and more", string(run.Message(1)))
	require.Equal(t, "third", string(run.Message(2)))
}

// A caller that appends to what it was given must not write into the next message.
func TestMessagesAreClosedAtTheirEnd(t *testing.T) {
	t.Parallel()
	b := change.NewBlock(0, 64, 4)
	b.Add([]byte("one"), change.Data, change.Other, change.Tx{})
	b.Add([]byte("two"), change.Data, change.Other, change.Tx{})
	run := b.Run(0, 2)
	_ = append(run.Message(0), "XXXXXX"...)
	require.Equal(t, "two", string(run.Message(1)))
}

// Runs are read while the appender goes on in the same block: with -race this shows that
// they share nothing that changes.
func TestRunsDoNotChange(t *testing.T) {
	t.Parallel()
	b := change.NewBlock(0, 1<<10, 8) // it grows, too
	var readers sync.WaitGroup
	for i := range 400 {
		text := fmt.Sprint("message ", i)
		b.Add(append(b.Spare(), text...), change.Data, change.Insert, change.Tx{Watermark: fmt.Sprint(i / 3), Attempt: int64(i / 3 * 3), Pos: int64(i % 3)})
		run := b.Run(max(0, i-20), i+1)
		readers.Go(func() {
			for k := range run.Len() {
				n := int(run.Seq) + k
				if string(run.Message(k)) != fmt.Sprint("message ", n) || run.Pos(k) != int64(n%3) || run.TxEnd(k) > run.Len() {
					panic(fmt.Sprint("run changed at ", n))
				}
			}
		})
	}
	readers.Wait()
}
