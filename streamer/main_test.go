package streamer_test

import (
	"os"
	"testing"

	"millrace/db/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(streamerVariable) != "" {
		streamerMain()
		return
	}
	pgtest.Main(m)
}
