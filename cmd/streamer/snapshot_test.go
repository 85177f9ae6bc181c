package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// shop is a database whose changes a streamer serves.
type shop struct {
	*pgtest.DB
	t       *testing.T
	conn    *pgx.Conn
	server  *program
	address string
}

// openShop runs statements and starts the streamer.
func openShop(t *testing.T, statements ...string) *shop {
	t.Helper()
	s := &shop{DB: pgtest.Empty(t), t: t}
	s.conn = s.Conn(t)
	for _, statement := range statements {
		s.exec(statement)
	}
	s.server = command(t, nil, "serve", "--upstream-db", s.URL, "--listen", "127.0.0.1:0").start()
	s.address = addressOf(t, s.server)
	return s
}

// close stops the streamer, before the test ends and takes its processes with it.
func (s *shop) close() {
	s.t.Helper()
	s.server.signal(syscall.SIGTERM)
	require.Equal(s.t, 0, s.server.wait(), s.server.stderr.String())
}

func (s *shop) exec(statement string, args ...any) {
	s.t.Helper()
	_, err := s.conn.Exec(s.t.Context(), statement, args...)
	require.NoError(s.t, err, statement)
}

func (s *shop) query(query string, args ...any) (text string) {
	s.t.Helper()
	require.NoError(s.t, s.conn.QueryRow(s.t.Context(), query, args...).Scan(&text), query)
	return text
}

// snapshot makes one that must succeed.
func (s *shop) snapshot(args ...string) (folder string) {
	s.t.Helper()
	folder = filepath.Join(s.t.TempDir(), "copy")
	code, stdout, stderr := invoke(s.t, nil, append([]string{"snapshot", "--upstream-db", s.URL, "--out", folder}, args...)...)
	require.Equal(s.t, 0, code, stderr)
	require.Empty(s.t, stdout)
	return folder
}

// position is what a manifest says.
func position(t *testing.T, folder string) (p state) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, "manifest.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(content, &p))
	return p
}

func TestSnapshotAndTail(t *testing.T) {
	t.Parallel()
	s := openShop(t,
		`create table public.item (id int primary key, name text)`,
		`create table public.void (id int primary key)`,
		`insert into public.item values (1, 'a'), (2, null)`)
	defer s.close()
	s.exec(`insert into public.item values (3, e'tab\t line\n back\\ ')`)
	folder := s.snapshot()
	at := position(t, folder)
	require.Equal(t, at.Watermark, s.query(`select backup_watermark from cdc.status`))
	s.exec(`insert into public.item values (4, 'd')`)

	file := filepath.Join(t.TempDir(), "state")
	p := command(t, nil, "tail", "--change-db", s.URL, "--snapshot", folder, "--state", file).start()
	output := p.stdout.waitLines(t, 5+3)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	relation := `"relation":{"schema":"public","name":"item","rowKey":{"columns":["id"],"type":"default"}}`
	lines := strings.Split(output, "\n")
	require.Equal(t, []string{
		`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"` + at.Watermark + `"}]`,
		`["data",{"tag":"insert",` + relation + `,"new":{"id":1,"name":"a"}}]`,
		`["data",{"tag":"insert",` + relation + `,"new":{"id":2,"name":null}}]`,
		`["data",{"tag":"insert",` + relation + `,"new":{"id":3,"name":"tab\t line\n back\\ "}}]`,
	}, lines[:4])
	require.Regexp(t, `^\["commit",\{"tag":"commit","commitTimeMs":\d+\},\{"watermark":"`+at.Watermark+`"\}\]$`, lines[4])
	require.Equal(t, `["data",{"tag":"insert",`+relation+`,"new":{"id":4,"name":"d"}}]`, lines[6])
}
