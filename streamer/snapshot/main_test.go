package snapshot_test

import (
	"testing"

	"millrace/db/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
