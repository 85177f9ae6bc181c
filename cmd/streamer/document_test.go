package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func readDocument(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return string(content)
}

// Whoever finds a state in the log finds it in the document.
func TestOperationsNamesEveryState(t *testing.T) {
	t.Parallel()
	document := readDocument(t, "operations.md")
	named := regexp.MustCompile(`(?:[sS]tate[A-Z]\w* += |\.find\()"([a-z-]+)"`)
	found := map[string]bool{}
	for _, folder := range []string{"streamer", "streamer/source/postgres"} {
		files, err := filepath.Glob(filepath.Join("..", "..", folder, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, match := range named.FindAllSubmatch(content, -1) {
				found[string(match[1])] = true
			}
		}
	}
	require.Contains(t, found, "slot-lost")
	require.Contains(t, found, "wal-level")
	require.Contains(t, found, "database-unreachable")
	for state := range found {
		require.Contains(t, document, "`"+state+"`")
	}
}

// The line of the document leaves whole transactions, whatever a crash has left.
func TestOutputIsCutBehindTheLastCommit(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile("(?m)^echo >> changes; .*$").FindString(readDocument(t, "operations.md"))
	require.NotEmpty(t, line)
	const whole = `["begin",{"tag":"begin"},{"commitWatermark":"121"}]` + "\n" +
		`["data",{"tag":"insert","new":{"name":"Zoë [\"commit\",]"}}]` + "\n" +
		`["commit",{"tag":"commit"},{"watermark":"121"}]` + "\n"
	for name, tt := range map[string]struct{ before, want string }{
		"whole":              {whole + whole, whole + whole},
		"in a line":          {whole + `["begin",{"tag":"beg`, whole},
		"in a transaction":   {whole + `["begin",{"tag":"begin"},{"commitWatermark":"122"}]` + "\n", whole},
		"in a commit":        {whole + whole[:len(whole)-5], whole},
		"before a line end":  {whole + whole[:len(whole)-1], whole + whole},
		"in the first one":   {whole[:len(whole)/2], ""},
		"before any message": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			file := filepath.Join(folder, "changes")
			require.NoError(t, os.WriteFile(file, []byte(tt.before), 0o600))
			cut := exec.CommandContext(t.Context(), "sh", "-ec", line)
			cut.Dir = folder
			output, err := cut.CombinedOutput()
			require.NoError(t, err, "%s", output)
			got, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
}
