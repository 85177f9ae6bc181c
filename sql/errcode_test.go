package sql_test

import (
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/sql"
)

// The codes in Go, in the documentation and in the functions are the same ones.
func TestErrcodes(t *testing.T) {
	t.Parallel()

	constants := map[string]string{} // code to name
	source, err := os.ReadFile("errcode.go")
	require.NoError(t, err)
	for _, line := range regexp.MustCompile(`(?m)^\t(Code\w+) += "(\w+)" +// .+$`).FindAllStringSubmatch(string(source), -1) {
		require.NotContains(t, constants, line[2])
		constants[line[2]] = line[1]
	}
	require.Contains(t, constants, sql.CodeNotOwner)
	require.Len(t, constants, strings.Count(string(source), "\tCode"))

	page, err := os.ReadFile("../docs/errcodes.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^\| (ZC\d{3}) \| (\w+) \| .*\|$`).FindAllStringSubmatch(string(page), -1) {
		documented[line[1]] = line[2]
	}
	require.Equal(t, constants, documented)

	raised := map[string]bool{}
	errcode := regexp.MustCompile(`errcode = '(\w{5})'`)
	statement := regexp.MustCompile(`(?s)\braise (exception|warning|notice)\b.*?;\n`)
	files, err := fs.Glob(sql.FS, "*.sql")
	require.NoError(t, err)
	for _, name := range files {
		content, err := fs.ReadFile(sql.FS, name)
		require.NoError(t, err)
		for _, raise := range statement.FindAllString(string(content), -1) {
			code := errcode.FindStringSubmatch(raise)
			require.NotNil(t, code, "%s: no errcode in: %s", name, raise)
			require.Contains(t, raise, "hint =", "%s", name)
			if code[1] == "55P03" || code[1] == "42501" { // what a caller knows from the server itself
				continue
			}
			require.Contains(t, constants, code[1], "%s", name)
			raised[code[1]] = true
		}
	}
	for code, name := range constants {
		require.True(t, raised[code], "%s (%s) is raised somewhere", code, name)
	}
}
