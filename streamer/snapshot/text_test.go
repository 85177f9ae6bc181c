package snapshot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/db/pgtest"
	"millrace/streamer/change"
	"millrace/streamer/snapshot"
)

// Whatever the text of a value is, what COPY writes of it is read as the same.
func TestTextOfCopy(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(t.Context(), `create table t (id int, a text, b text)`)
	require.NoError(t, err)
	texts := rapid.OneOf(
		rapid.StringOf(rapid.SampledFrom([]rune{'\\', 'N', 'n', '.', 't', '\t', '\n', '\r', '\b', '\f', '\v', 'x', '0', 'é', '😀', 1, 127})),
		rapid.String(),
	)
	rapid.Check(t, func(rt *rapid.T) {
		values := make([][2]*string, rapid.IntRange(1, 8).Draw(rt, "rows"))
		_, err := conn.Exec(t.Context(), `truncate t`)
		require.NoError(rt, err)
		for i := range values {
			for j := range values[i] {
				if rapid.IntRange(0, 4).Draw(rt, "null") > 0 {
					text := strings.ReplaceAll(strings.ToValidUTF8(texts.Draw(rt, "text"), "?"), "\x00", "")
					values[i][j] = &text
				}
			}
			_, err := conn.Exec(t.Context(), `insert into t values ($1, $2, $3)`, i, values[i][0], values[i][1])
			require.NoError(rt, err)
		}
		var copied bytes.Buffer
		_, err = conn.PgConn().CopyTo(t.Context(), &copied, `copy (select * from t order by id) to stdout`)
		require.NoError(rt, err)

		table := item("t")
		table.Columns = []snapshot.Column{{Name: "id", TypeOID: 23}, {Name: "a", TypeOID: 25}, {Name: "b", TypeOID: 25}}
		dir := t.TempDir()
		write(t, dir, snapshot.None, []snapshot.Table{table}, copied.String())
		messages, err := replayed(t, dir)
		require.NoError(rt, err)
		require.Len(rt, messages, len(values)+2)
		for i, message := range messages[1 : len(values)+1] {
			var parts []json.RawMessage
			require.NoError(rt, json.Unmarshal([]byte(message), &parts))
			var row struct{ New struct{ A, B *string } }
			require.NoError(rt, json.Unmarshal(parts[1], &row))
			got := [2]*string{row.New.A, row.New.B}
			require.Equal(rt, values[i], got)
		}
	})
}

// Lines that COPY does not write are an error and never a panic.
func FuzzLines(f *testing.F) {
	for _, line := range []string{"1\ta", "\\N\t\\N", "1", "1\t2\t3", "\\", "\\x", "a\\", "\\N\\N\t", ""} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.IndexByte(line, '\n') >= 0 {
			return
		}
		dir := t.TempDir()
		write(t, dir, snapshot.None, []snapshot.Table{item("t")}, string(line)+"\n")
		reader, err := snapshot.Open(dir)
		require.NoError(t, err)
		err = reader.Replay(t.Context(), snapshot.ReplayConfig{Message: func(change.Kind, []byte) error { return nil }})
		if err != nil {
			require.ErrorIs(t, err, snapshot.ErrDamaged, "%q", line)
		}
	})
}
