package postgres_test

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"millrace/db/pgtest"
)

// parallelTests is more than there are cores: these tests wait for timeouts of the server
// most of the time.
const parallelTests = 10

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(parallelTests)); err != nil {
		os.Exit(2)
	}
	pgtest.Main(m)
}
