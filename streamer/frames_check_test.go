package streamer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	transcripts = "testdata/transcripts"
	cases       = "testdata/cases"
)

// recordedFile returns the path of a transcript, which is compressed if it is large.
func recordedFile(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(transcripts, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	_, err := os.Stat(path + ".gz")
	require.NoError(t, err)
	return path + ".gz"
}

func TestRecordedFilesAreReadable(t *testing.T) {
	t.Parallel()
	var files []string
	for _, pattern := range []string{transcripts + "/*.jsonl", transcripts + "/*.jsonl.gz", cases + "/*/expected.jsonl"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			var frames []frame
			if strings.Contains(file, ".changelog.") {
				var err error
				frames, err = framesOf(loadRows(t, file))
				require.NoError(t, err)
			} else {
				frames = loadFrames(t, file)
			}
			_, err := exactly.frames(frames)
			require.NoError(t, err)
			requireSame(t, frames, frames, "a file and itself")
		})
	}
}

func TestRecordedRowsAreTheRecordedFrames(t *testing.T) {
	t.Parallel()
	for _, name := range scenarioNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			frames := loadFrames(t, recordedFile(t, name+".jsonl"))
			rows, err := framesOf(loadRows(t, recordedFile(t, name+".changelog.jsonl")))
			require.NoError(t, err)
			requireSame(t, frames, rows, "frames and rows")
		})
	}
}

// one is a transaction that the cases below change in one place.
const one = `["begin",{"tag":"begin","json":"s"},{"commitWatermark":"3abc"}]
["data",{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":["a","b"],"type":"default"}},"new":{"a":1,"b":"x","n":9007199254740993,"z":null}}]
["data",{"tag":"update","relation":{"schema":"public","name":"t","rowKey":{"columns":["a","b"],"type":"default"}},"key":null,"new":{"a":2,"l":[1,null]}}]
["commit",{"tag":"commit"},{"watermark":"3abc"}]
`

func parseFrames(t testing.TB, text string) []frame {
	t.Helper()
	path := filepath.Join(t.TempDir(), "frames.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	frames, err := loadLines[frame](path)
	require.NoError(t, err)
	return frames
}

func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new string }{
		{"a number as a string", `"a":1,`, `"a":"1",`},
		{"null left out", `,"z":null`, ``},
		{"null as a string", `"z":null`, `"z":"null"`},
		{"the last digit of a large number", `9007199254740993`, `9007199254740992`},
		{"minus zero", `"a":2`, `"a":-0`},
		{"an element of an array", `[1,null]`, `[1,false]`},
		{"a nested array", `[1,null]`, `[[1,null]]`},
		{"another table", `"name":"t","rowKey":{"columns":["a","b"],"type":"default"}},"key"`, `"name":"u","rowKey":{"columns":["a","b"],"type":"default"}},"key"`},
		{"another row key", `"columns":["a","b"],"type":"default"}},"key"`, `"columns":["a"],"type":"default"}},"key"`},
		{"another identity", `"type":"default"}},"key"`, `"type":"full"}},"key"`},
		{"a key where none changed", `"key":null`, `"key":{"a":1}`},
		{"the format of JSON columns", `"json":"s"`, `"json":"p"`},
		{"a message less", `["data",{"tag":"update"`, `["status",{"tag":"update"`},
		{"a rollback for a commit", "[\"commit\",{\"tag\":\"commit\"},{\"watermark\":\"3abc\"}]\n", "[\"rollback\",{\"tag\":\"rollback\"}]\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, 1, strings.Count(one, tt.old), "the case changes one place")
			diff, err := exactly.differences(parseFrames(t, one), parseFrames(t, strings.Replace(one, tt.old, tt.new, 1)))
			require.NoError(t, err)
			require.Contains(t, diff, "differ\n")
		})
	}
}

func TestWhatDiffersFromRunToRunIsNotCompared(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new string }{
		{"watermarks", "3abc", "3abd"},
		{"a status frame", one[:1], "[\"status\",{\"tag\":\"status\"}]\n" + one[:1]},
		{"extra fields", `{"tag":"begin",`, `{"tag":"begin","commitLsn":"0/1","xid":740,"commitTime":1,`},
		{"the older form of a relation", `"rowKey":{"columns":["a","b"],"type":"default"}`, `"keyColumns":["b","a"],"replicaIdentity":"default"`},
		{"the order of members", `"a":1,"b":"x"`, `"b":"x","a":1`},
		{"the form of a number", `"a":2`, `"a":0.2e1`},
		{"an empty transaction", one[:1], `["begin",{"tag":"begin"},{"commitWatermark":"10"}]` + "\n" + `["commit",{"tag":"commit"},{"watermark":"10"}]` + "\n" + one[:1]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := -1
			if len(tt.old) == 1 {
				n = 1 // at the start
			}
			changed := strings.Replace(one, tt.old, tt.new, n)
			require.NotEqual(t, one, changed)
			requireSame(t, parseFrames(t, one), parseFrames(t, changed), tt.name)
		})
	}
}

func TestDoublesForgetTheLastDigit(t *testing.T) {
	t.Parallel()
	got := parseFrames(t, strings.Replace(one, "9007199254740993", "9007199254740992", 1))
	diff, err := projection{doubles: true}.differences(parseFrames(t, one), got)
	require.NoError(t, err)
	require.Empty(t, diff)
}

func TestBrokenTranscriptsAreRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, old, new, want string }{
		{"commit at another watermark", `{"watermark":"3abc"}`, `{"watermark":"3abd"}`, "began for"},
		{"the same transaction twice", one, one + one, "not past"},
		{"a row without its table", `"name":"t",`, ``, "not as the protocol says"},
		{"a message without a kind", `["commit",`, `[7,`, "element 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := exactly.frames(parseFrames(t, strings.Replace(one, tt.old, tt.new, 1)))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestBrokenLogsAreRefused(t *testing.T) {
	t.Parallel()
	w, early := "3abc", "3abb"
	begin := row{Watermark: w, Pos: 0, Change: []byte(`{"tag":"begin"}`)}
	insert := row{Watermark: w, Pos: 1, Change: []byte(`{"tag":"insert"}`)}
	commit := row{Watermark: w, Pos: 2, Precommit: &w, Change: []byte(`{"tag":"commit"}`)}
	with := func(r row, change func(*row)) row {
		change(&r)
		return r
	}
	_, err := framesOf([]row{begin, insert, commit})
	require.NoError(t, err)

	tests := []struct {
		name string
		rows []row
	}{
		{"no commit", []row{begin, insert}},
		{"no begin", []row{insert, commit}},
		{"a gap", []row{begin, commit}},
		{"a row twice", []row{begin, insert, insert, commit}},
		{"begin inside", []row{begin, begin}},
		{"another watermark inside", []row{begin, with(insert, func(r *row) { r.Watermark = early }), commit}},
		{"precommit on a row", []row{begin, with(insert, func(r *row) { r.Precommit = &w }), commit}},
		{"another precommit on the commit", []row{begin, insert, with(commit, func(r *row) { r.Precommit = &early })}},
		{"no precommit on the commit", []row{begin, insert, with(commit, func(r *row) { r.Precommit = nil })}},
		{"not JSON", []row{with(begin, func(r *row) { r.Change = []byte(`{`) })}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := framesOf(tt.rows)
			require.Error(t, err)
		})
	}
}
