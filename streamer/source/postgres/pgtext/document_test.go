package pgtext_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// What docs/protocol.md shows is what subscribers get.
func TestExamplesOfTheProtocol(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile("../../../../docs/protocol.md")
	require.NoError(t, err)
	section := regexp.MustCompile("(?s)\n## Values\n.*?\n## ").Find(document)
	require.NotEmpty(t, section)
	table := regexp.MustCompile("(?s)\\| in SQL \\| in JSON \\|\n.*?\n\n").Find(section)
	require.NotEmpty(t, table)
	examples := regexp.MustCompile("(?m)^\\| `(.*)` \\| `(.*)` \\|$").FindAllSubmatch(table, -1)
	require.Greater(t, len(examples), 30)

	conn := session(t, "UTC")
	for _, example := range examples {
		require.Equal(t, string(example[2]), encode(t, conn, "select "+string(example[1])), "%s", example[1])
	}
}
