package streamer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer"
)

// patience is how long a test waits for anything before it fails.
const patience = time.Minute

// A stage is one database with a table of marks, and a streamer on it, which can be
// stopped and started again.
type stage struct {
	db           *pgtest.DB
	publications []string
	player       *player
	marks        int

	address        string // of the running streamer
	replicaVersion string
	stop           func()
}

const markTable = `
create schema harness;
create table harness.mark (id int primary key);
create publication marks for table harness.mark`

// newStage prepares a database with prepare and starts a streamer of publication and of
// the marks.
func newStage(t *testing.T, publication string, prepare func(p *player)) *stage {
	t.Helper()
	db := pgtest.New(t)
	b := &stage{db: db, publications: []string{publication, "marks"}, player: newPlayer(t, db.URL)}
	prepare(b.player)
	require.Empty(t, b.player.playScript(t, "marks", markTable))
	b.start(t)
	return b
}

// start runs a streamer and waits until it serves.
func (b *stage) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	started, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- streamer.Run(ctx, streamer.Config{
			UpstreamDB:   b.db.URL,
			AppID:        b.db.Name, // slots belong to the whole server
			TaskID:       "transcripts",
			Publications: b.publications,
			Listen:       "127.0.0.1:0",
			Logger:       slog.New(slog.NewTextHandler(t.Output(), nil)),
			Started:      func(address string) { started <- address },
		})
	}()
	stopped := false
	b.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.FailNow(t, "the streamer did not stop")
		}
	}
	t.Cleanup(b.stop)
	select {
	case b.address = <-started:
	case err := <-ended:
		stopped = true
		cancel()
		require.FailNow(t, "the streamer ended before it served", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "the streamer does not serve")
	}
	b.replicaVersion = b.queryText(t, `select "replicaVersion" from cdc."replicationConfig"`)
}

func (b *stage) queryText(t *testing.T, sql string) string {
	t.Helper()
	results, err := b.player.exec(t, sql)
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Len(t, results[0].Rows, 1)
	return string(results[0].Rows[0][0])
}

func (b *stage) head(t *testing.T) string {
	t.Helper()
	return b.queryText(t, `select "lastWatermark" from cdc."replicationState"`)
}

// mark commits a transaction by which a reader knows that it has everything before.
func (b *stage) mark(t *testing.T) int {
	t.Helper()
	b.marks++
	require.Empty(t, b.player.playScript(t, "mark", fmt.Sprintf("insert into harness.mark values (%d)", b.marks)))
	return b.marks
}

// stored waits until the transaction at watermark is stored, and returns the rows that
// lie behind from and before it.
func (b *stage) stored(t *testing.T, from, watermark string) []row {
	t.Helper()
	conn := b.db.Conn(t)
	require.Eventually(t, func() bool {
		var done bool
		err := conn.QueryRow(context.Background(),
			`select s."lastWatermark" >= $1 collate "C" from cdc."replicationState" as s`, watermark).Scan(&done)
		return err == nil && done
	}, patience, 5*time.Millisecond, "the log does not reach %s", watermark)

	rows, err := conn.Query(t.Context(), `
		select c.watermark, c.pos, c.precommit, c.change::text
		from cdc."changeLog" as c
		where c.watermark > $1 collate "C" and c.watermark < $2 collate "C"
		order by c.watermark collate "C", c.pos`, from, watermark)
	require.NoError(t, err)
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (out row, err error) {
		var text string
		err = r.Scan(&out.Watermark, &out.Pos, &out.Precommit, &text)
		out.Change = json.RawMessage(text)
		return out, err
	})
	require.NoError(t, err)
	return out
}

// A reader is a subscription that acks everything it gets.
type reader struct {
	conn *websocket.Conn
	next int64  // id that the next frame must have
	last string // watermark of the last commit
}

// dial asks for a path of the streamer, as a subscriber does.
func (b *stage) dial(t *testing.T, path string, parameters url.Values) *reader {
	t.Helper()
	target := url.URL{Scheme: "ws", Host: b.address, Path: path, RawQuery: parameters.Encode()}
	conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), target.String(), nil)
	require.NoError(t, err, target.String())
	require.NoError(t, response.Body.Close())
	r := &reader{conn: conn, next: 1}
	t.Cleanup(r.close)
	return r
}

func (r *reader) close() {
	_ = r.conn.Close() // it may have been closed already
}

// request is what every subscriber says of itself.
func (b *stage) request(watermark string) url.Values {
	return url.Values{
		"id": {"test/reader"}, "taskID": {"test"}, "mode": {"serving"},
		"replicaVersion": {b.replicaVersion}, "watermark": {watermark}, "initial": {"true"},
	}
}

// subscribe subscribes behind watermark and checks that this is valid.
func (b *stage) subscribe(t *testing.T, watermark string) *reader {
	t.Helper()
	r := b.dial(t, "/replication/v6/changes", b.request(watermark))
	first := r.read(t)
	require.True(t, bytes.HasPrefix(first.Msg, []byte(`["status",{"tag":"status"`)), "first message: %s", first.Msg)
	return r
}

// read returns the next frame, whose form and number it checks, and acks it. The end of
// the connection is a frame too.
func (r *reader) read(t *testing.T) frame {
	t.Helper()
	require.NoError(t, r.conn.SetReadDeadline(time.Now().Add(patience)))
	kind, text, err := r.conn.ReadMessage()
	var end *websocket.CloseError
	if errors.As(err, &end) {
		return frame{Close: &closed{Code: end.Code, Reason: end.Text}}
	}
	require.NoError(t, err)
	require.Equal(t, websocket.TextMessage, kind)

	prefix := `{"id":` + strconv.FormatInt(r.next, 10) + `,"msg":`
	message, ok := strings.CutPrefix(string(text), prefix)
	require.True(t, ok, "expected %s…, got %.200s", prefix, text)
	message, ok = strings.CutSuffix(message, "}")
	require.True(t, ok, "not a frame: %.200s", text)
	require.True(t, json.Valid([]byte(message)), "not JSON: %.200s", text)

	require.NoError(t, r.conn.SetWriteDeadline(time.Now().Add(patience)))
	require.NoError(t, r.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `{"ack":%d}`, r.next)))
	r.next++
	return frame{ID: r.next - 1, Msg: json.RawMessage(message)}
}

// until reads until the given mark has been committed, and returns what came before it.
// Transactions of earlier marks are left out.
func (r *reader) until(t *testing.T, mark int) []frame {
	t.Helper()
	var out []frame
	begin, seen := 0, 0
	for {
		f := r.read(t)
		require.Nil(t, f.Close, "the connection ended before mark %d", mark)
		out = append(out, f)
		var message []json.RawMessage
		require.NoError(t, json.Unmarshal(f.Msg, &message))
		switch string(message[0]) {
		case `"begin"`:
			begin = len(out) - 1
		case `"data"`:
			seen = max(seen, markOf(t, message[1]))
		case `"commit"`:
			var position struct{ Watermark string }
			require.NoError(t, json.Unmarshal(message[2], &position))
			r.last = position.Watermark
			if seen > 0 {
				out = out[:begin]
			}
			if seen == mark {
				return out
			}
			require.Less(t, seen, mark)
			seen = 0
		}
	}
}

// markOf returns the mark that a change sets, or 0.
func markOf(t *testing.T, text []byte) int {
	t.Helper()
	if !bytes.Contains(text, []byte(`"harness"`)) {
		return 0
	}
	var c struct {
		Relation struct{ Schema, Name string }
		New      struct{ ID int }
	}
	require.NoError(t, json.Unmarshal(text, &c))
	if c.Relation.Schema != "harness" || c.Relation.Name != "mark" {
		return 0
	}
	return c.New.ID
}

// quiet checks that nothing has been sent that was not read: the answer to a ping comes
// behind it.
func (r *reader) quiet(t *testing.T) {
	t.Helper()
	pong := errors.New("pong")
	r.conn.SetPongHandler(func(string) error { return pong })
	require.NoError(t, r.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience)))
	require.NoError(t, r.conn.SetReadDeadline(time.Now().Add(patience)))
	_, text, err := r.conn.ReadMessage()
	require.ErrorIs(t, err, pong, "got %.200s", text)
}

// requireSameBytes fails unless the messages are equal byte for byte, status aside.
func requireSameBytes(t testing.TB, want, got []frame, what string) {
	t.Helper()
	messages := func(frames []frame) (out []string) {
		for _, f := range frames {
			if !bytes.HasPrefix(f.Msg, []byte(`["status"`)) {
				out = append(out, string(f.Msg))
			}
		}
		return out
	}
	a, b := messages(want), messages(got)
	for i := range min(len(a), len(b)) {
		require.Equal(t, a[i], b[i], "%s: message %d", what, i)
	}
	require.Len(t, b, len(a), "%s: number of messages", what)
}
