package streamer_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/db/pgtest"
)

func TestSplitScript(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, script string
		want         []step
	}{
		{"nothing", " \n ;; -- a remark; no statement\n/* neither; this */", nil},
		{"two on a line", "select 1; select 2;", []step{{sql: "select 1", line: 1}, {sql: "select 2", line: 1}}},
		{"no last semicolon", "select 1;\n\nselect\n2", []step{{sql: "select 1", line: 1}, {sql: "select\n2", line: 3}}},
		{"quotes", `select ';', "a;b", 'it''s;';x`, []step{{sql: `select ';', "a;b", 'it''s;'`, line: 1}, {sql: "x", line: 1}}},
		{"a backslash in a plain string", `select '\';x`, []step{{sql: `select '\'`, line: 1}, {sql: "x", line: 1}}},
		{"an escape string", `select E'\';', e'\\';x`, []step{{sql: `select E'\';', e'\\'`, line: 1}, {sql: "x", line: 1}}},
		{"a name that ends in e", `select type'\';x`, []step{{sql: `select type'\'`, line: 1}, {sql: "x", line: 1}}},
		{"dollar quotes", "do $$begin;$$;do $a$;$$;$a$;x", []step{{sql: "do $$begin;$$", line: 1}, {sql: "do $a$;$$;$a$", line: 1}, {sql: "x", line: 1}}},
		{"dollars in names and arguments", "select a$b$, $1;x$b$", []step{{sql: "select a$b$, $1", line: 1}, {sql: "x$b$", line: 1}}},
		{"comments", "select 1 -- ; '\n+ 1 /* ; /* ' */ ; */;x", []step{{sql: "select 1 -- ; '\n+ 1 /* ; /* ' */ ; */", line: 1}, {sql: "x", line: 2}}},
		{"remarks before a statement", "a; -- remark\n/* another */\nb -- of b\n;", []step{{sql: "a", line: 1}, {sql: "b -- of b", line: 3}}},
		{"parentheses", "create rule r as on insert to t do (select 1; select 2);x", []step{{sql: "create rule r as on insert to t do (select 1; select 2)", line: 1}, {sql: "x", line: 1}}},
		{"commands", "\\session a\nselect 1 \\gexec\nx;", []step{{command: `\session a`, line: 1}, {sql: "select 1", command: `\gexec`, line: 2}, {sql: "x", line: 3}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := splitScript(tt.script)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestSplitScriptRefusesWhatHasNoEnd(t *testing.T) {
	t.Parallel()
	for _, script := range []string{"select '", `select "a`, "select $$ $a$", "/* /* */", `select E'\'`} {
		_, err := splitScript("x;\n" + script)
		require.ErrorContains(t, err, "line 2", script)
	}
}

func TestSplitScriptFindsEveryStatement(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		anything := rapid.StringMatching(`[a-z;'"$\\()*/-]{0,8}`)
		piece := rapid.Custom(func(t *rapid.T) string {
			text := anything.Draw(t, "text")
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				return "'" + strings.ReplaceAll(text, "'", "''") + "'"
			case 1:
				return "E'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'"
			case 2:
				return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
			case 3:
				return "$q$" + strings.ReplaceAll(text, "$", "$ ") + "$q$"
			case 4:
				return "select -- " + text + "\n"
			default:
				return "(a;b)"
			}
		})
		var want []string
		for range rapid.IntRange(0, 4).Draw(t, "statements") {
			pieces := rapid.SliceOfN(piece, 0, 4).Draw(t, "pieces")
			want = append(want, strings.Join(append(pieces, "select"), " "))
		}
		steps, err := splitScript(strings.Join(want, ";\n"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range steps {
			got = append(got, s.sql)
		}
		if strings.Join(got, "\x00") != strings.Join(want, "\x00") {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// The scripts themselves must run as their tests expect, without a streamer too.
func TestScenariosRun(t *testing.T) {
	t.Parallel()
	p := newPlayer(t, pgtest.Empty(t).URL)
	require.Empty(t, p.playScript(t, "seed", "create table seed (id int primary key, v text)"))
	for _, s := range scenarios {
		if s.setup {
			require.Empty(t, p.play(t, filepath.Join(transcripts, s.name+".setup.sql")), s.name)
		}
		require.Equal(t, s.refused, p.play(t, filepath.Join(transcripts, s.name+".sql")), s.name)
	}
}

func TestCasesRun(t *testing.T) {
	t.Parallel()
	for _, c := range fieldCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPlayer(t, pgtest.Empty(t).URL)
			require.Empty(t, p.play(t, filepath.Join(cases, c.name, "setup.sql")))
			require.Equal(t, c.refused, p.play(t, filepath.Join(cases, c.name, "input.sql")))
		})
	}
}
