package streamer_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// A step is one statement of a script without its semicolon, or a backslash command on
// its own.
type step struct {
	sql     string
	command string // such as \gexec; applies to sql, or stands alone if sql is empty
	line    int    // where it begins, from 1
}

// splitScript splits a script as psql does: at semicolons that stand outside quotes,
// dollar quotes, comments and parentheses, and at backslash commands, which end with
// their line. Comments inside of a statement are left in it.
func splitScript(script string) ([]step, error) {
	var steps []step
	start, depth, content := 0, 0, false // of the statement being read
	line := func(i int) int { return 1 + strings.Count(script[:i], "\n") }
	emit := func(end int, command string) {
		text := strings.TrimSpace(script[start:end])
		if content || command != "" {
			if !content {
				text = "" // comments alone
			}
			at := start + len(script[start:end]) - len(strings.TrimLeft(script[start:end], " \t\r\n"))
			steps = append(steps, step{sql: text, command: command, line: line(at)})
		}
		depth, content = 0, false
	}
	for i := 0; i < len(script); {
		rest := script[i:]
		switch c := script[i]; {
		case strings.HasPrefix(rest, "--"):
			i += lineEnd(rest)
			if !content {
				start = i
			}
		case strings.HasPrefix(rest, "/*"):
			n := commentEnd(rest)
			if n < 0 {
				return nil, fmt.Errorf("line %d: comment without an end", line(i))
			}
			i += n
			if !content {
				start = i
			}
		case c == '\'' || c == '"':
			n := quoteEnd(rest, c == '\'' && escapes(script[start:i]))
			if n < 0 {
				return nil, fmt.Errorf("line %d: %c without an end", line(i), c)
			}
			i, content = i+n, true
		case c == '$' && !endsInName(script[start:i]) && dollarTag(rest) != "":
			tag := dollarTag(rest)
			n := strings.Index(rest[len(tag):], tag)
			if n < 0 {
				return nil, fmt.Errorf("line %d: %s without an end", line(i), tag)
			}
			i, content = i+n+2*len(tag), true
		case c == '\\':
			n := lineEnd(rest)
			emit(i, strings.TrimSpace(rest[:n]))
			i += n
			start = i
		case c == ';' && depth == 0:
			emit(i, "")
			i++
			start = i
		default:
			switch c {
			case '(':
				depth++
			case ')':
				depth = max(0, depth-1)
			}
			content = content || !strings.ContainsRune(" \t\r\n;", rune(c))
			i++
		}
	}
	emit(len(script), "")
	return steps, nil
}

func lineEnd(s string) int {
	if n := strings.IndexByte(s, '\n'); n >= 0 {
		return n
	}
	return len(s)
}

// commentEnd is the length of the comment that s begins with; comments nest.
func commentEnd(s string) int {
	depth := 0
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(s[i:], "*/"):
			i += 2
			if depth--; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return -1
}

// quoteEnd is the length of the quoted text that s begins with. A doubled quote is read
// as two texts side by side.
func quoteEnd(s string, escapes bool) int {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] == s[0]:
			return i + 1
		}
	}
	return -1
}

// escapes says whether a quote behind before begins an escape string.
func escapes(before string) bool {
	n := len(before) - 1
	return n >= 0 && (before[n] == 'E' || before[n] == 'e') && !endsInName(before[:n])
}

func endsInName(before string) bool {
	if before == "" {
		return false
	}
	c := before[len(before)-1]
	return c == '_' || c == '$' || c >= 0x80 ||
		'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// dollarTag returns the opening of a dollar quote, such as $$ or $body$, or nothing.
func dollarTag(s string) string {
	for i := 1; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '$':
			return s[:i+1]
		case c == '_' || c >= 0x80 || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 1:
		default:
			return ""
		}
	}
	return ""
}

// A player runs scripts as psql does, every statement on its own and committed on its
// own, on as many sessions as the script names.
type player struct {
	config   *pgx.ConnConfig
	sessions map[string]*pgconn.PgConn
	current  string
}

func newPlayer(t testing.TB, url string) *player {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	require.NoError(t, err)
	p := &player{config: config, sessions: map[string]*pgconn.PgConn{}}
	t.Cleanup(func() {
		for _, session := range p.sessions {
			// The test's own context has ended by now.
			require.NoError(t, session.Close(context.WithoutCancel(t.Context())))
		}
	})
	return p
}

// play runs the script of a file and returns the SQLSTATEs of the statements that the
// server refused, in order. Commands are \session NAME, which goes on with a session of
// that name, and psql's \gexec.
func (p *player) play(t testing.TB, path string) []string {
	t.Helper()
	script, err := os.ReadFile(path)
	require.NoError(t, err)
	return p.playScript(t, path, string(script))
}

func (p *player) playScript(t testing.TB, name, script string) (refused []string) {
	t.Helper()
	steps, err := splitScript(script)
	require.NoError(t, err, name)
	require.NotEmpty(t, steps, name)
	defer func() { p.current = "" }()
	for _, s := range steps {
		where := fmt.Sprintf("%s:%d: %.80s", name, s.line, s.sql)
		command, argument, _ := strings.Cut(s.command, " ")
		switch command {
		case "":
			_, err = p.exec(t, s.sql)
		case `\session`:
			require.Empty(t, s.sql, where)
			p.current = strings.TrimSpace(argument)
			continue
		case `\gexec`:
			err = p.gexec(t, s.sql)
		default:
			t.Fatalf("%s: %s is no command of a script", where, s.command)
		}
		if err != nil {
			var refusal *pgconn.PgError
			require.ErrorAs(t, err, &refusal, where)
			t.Logf("%s: %s (SQLSTATE %s)", where, refusal.Message, refusal.Code)
			refused = append(refused, refusal.Code)
		}
	}
	return refused
}

func (p *player) exec(t testing.TB, sql string) ([]*pgconn.Result, error) {
	t.Helper()
	session := p.sessions[p.current]
	if session == nil {
		conn, err := pgx.ConnectConfig(t.Context(), p.config)
		require.NoError(t, err)
		session = conn.PgConn()
		p.sessions[p.current] = session
	}
	return session.Exec(t.Context(), sql).ReadAll()
}

// gexec runs every value of a result as a statement.
func (p *player) gexec(t testing.TB, sql string) error {
	t.Helper()
	results, err := p.exec(t, sql)
	if err != nil {
		return err
	}
	for _, result := range results {
		for _, values := range result.Rows {
			for _, value := range values {
				if _, err := p.exec(t, string(value)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
