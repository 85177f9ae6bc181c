package pgoutput_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
	"millrace/streamer/source/postgres/pgoutput"
	"millrace/streamer/source/postgres/pgtext"
)

// rewrite makes the results in testdata anew.
var rewrite = flag.Bool("rewrite", false, "write testdata/*.jsonl from what the decoder gives now")

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestStreamOfAServer runs the scripts of testdata and decodes what a server's plugin
// makes of them. A script is SQL, one statement a line or over several; a blank line
// with "-- follow" parts what is done before the slot is made. Statements that the
// server must refuse are marked with "-- refused SQLSTATE".
func TestStreamOfAServer(t *testing.T) {
	t.Parallel()

	scripts, err := filepath.Glob("testdata/*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".sql"), func(t *testing.T) {
			t.Parallel()

			got := runScript(t, script)
			want := strings.TrimSuffix(script, ".sql") + ".jsonl"
			if *rewrite {
				require.NoError(t, os.WriteFile(want, []byte(got), 0o600))
			}
			golden, err := os.ReadFile(want)
			require.NoError(t, err)
			require.Equal(t, string(golden), got)
		})
	}
}

var refused = regexp.MustCompile(`-- refused (\w{5})`)

func runScript(t *testing.T, script string) string {
	t.Helper()
	text, err := os.ReadFile(script)
	require.NoError(t, err)
	setup, input, found := strings.Cut(string(text), "-- follow\n")
	require.True(t, found)

	conn := pgtest.Empty(t).Conn(t)
	runStatements(t, conn, setup)
	for name, value := range map[string]string{
		"DateStyle": "ISO, MDY", "TimeZone": "UTC", "bytea_output": "hex",
		"synchronous_commit": "on", // the slot is read up to what is flushed
	} {
		_, err := conn.Exec(t.Context(), `select set_config($1, $2, false)`, name, value)
		require.NoError(t, err)
	}
	// Slots belong to the server, not to the database; it goes with its database.
	_, err = conn.Exec(t.Context(), `select pg_create_logical_replication_slot(current_database(), 'pgoutput')`)
	require.NoError(t, err)
	runStatements(t, conn, input)
	return decodeSlot(t, conn)
}

func runStatements(t *testing.T, conn *pgx.Conn, text string) {
	t.Helper()
	var statement strings.Builder
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		code, comment, _ := strings.Cut(lines.Text(), "--")
		statement.WriteString(code + "\n")
		if !strings.HasSuffix(strings.TrimSpace(code), ";") {
			continue
		}
		_, err := conn.Exec(t.Context(), statement.String(), pgx.QueryExecModeSimpleProtocol)
		if state := refused.FindStringSubmatch("--" + comment); state != nil {
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr, statement.String())
			require.Equal(t, state[1], pgErr.Code, pgErr.Message)
		} else {
			require.NoError(t, err, statement.String())
		}
		statement.Reset()
	}
	require.NoError(t, lines.Err())
	require.Empty(t, strings.TrimSpace(statement.String()))
}

// decodeSlot decodes all that the slot has, and returns the messages, one a line, with
// the watermarks and times, which differ from run to run, taken out.
func decodeSlot(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `select data from pg_catalog.pg_logical_slot_get_binary_changes(current_database(), null, null,
		'proto_version', '1', 'publication_names', 'p', 'messages', 'true')`)
	require.NoError(t, err)
	stream, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	require.NoError(t, err)

	sink := &recorder{t: t}
	d := newDecoder(t, sink, pgoutput.Config{
		Types: func(oid uint32) (pgtext.Type, error) { return lookUp(t, conn, oid) },
	})
	play(t, d, stream...)
	require.False(t, d.InTransaction())

	var out bytes.Buffer
	for _, message := range sink.messages {
		switch {
		case strings.HasPrefix(message, `["begin"`):
			message = `["begin"]`
		case strings.HasPrefix(message, `["commit"`):
			message = `["commit"]`
		}
		fmt.Fprintln(&out, shorten(message))
	}
	return out.String()
}

var long = regexp.MustCompile(`x{100,}|y{100,}|z{100,}`)

// shorten replaces the filling of large values by its length.
func shorten(message string) string {
	return long.ReplaceAllStringFunc(message, func(s string) string {
		return fmt.Sprintf("(%d %c)", len(s), s[0])
	})
}

func lookUp(t *testing.T, conn *pgx.Conn, oid uint32) (pgtext.Type, error) {
	t.Helper()
	var row pgtext.CatalogType
	var typ, category, delim string
	var elem uint32
	err := conn.QueryRow(t.Context(), `select oid, typname::text, typtype::text, typcategory::text, typlen,
		typdelim::text, typbasetype, typelem from pg_catalog.pg_type where oid = $1`, oid).
		Scan(&row.OID, &row.Name, &typ, &category, &row.Len, &delim, &row.Base, &elem)
	if errors.Is(err, pgx.ErrNoRows) {
		return pgtext.Type{}, errUnknownType
	}
	require.NoError(t, err)
	row.Type, row.Category, row.Delim = typ[0], category[0], delim[0]
	if elem != 0 {
		row.Elem = &pgtext.CatalogType{OID: elem, Type: 'b', Delim: row.Delim}
	}
	return pgtext.FromCatalog(row), nil
}
