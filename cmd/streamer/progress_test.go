package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer"
)

func TestProgressBar(t *testing.T) {
	t.Parallel()
	tests := []struct {
		progress streamer.SnapshotProgress
		want     string
	}{
		{streamer.SnapshotProgress{}, "[........................]   0 %  0 of 0 tables  0 rows  0 B  "},
		{
			streamer.SnapshotProgress{Tables: 12, TablesDone: 5, Rows: 1234567, Bytes: 456_000_000, Share: 0.5},
			"[############............]  50 %  5 of 12 tables  1234567 rows  456.0 MB  ",
		},
		{
			streamer.SnapshotProgress{Tables: 9999, TablesDone: 9999, Rows: 99_999_999_999, Bytes: 9_999_000_000_000, Share: 1},
			"[########################] 100 %  9999 of 9999 tables  99999999999 rows  10.0 TB  ",
		},
	}
	for _, tt := range tests {
		var out bytes.Buffer
		bar := progressBar{w: &out, began: time.Now()}
		bar.show(tt.progress)
		require.Equal(t, tt.want+"0s\x1b[K\r", out.String())
		out.Reset()
		bar.clear()
		require.Equal(t, clearRest, out.String())
	}
	var out bytes.Buffer
	bar := progressBar{w: &out}
	bar.clear()
	require.Empty(t, out.String(), "nothing was shown")
}

func TestByteSize(t *testing.T) {
	t.Parallel()
	sizes := map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_500_000: "1.5 MB", 20_000_000_000: "20.0 GB", 5_000_000_000_000_000: "5000.0 TB"}
	for n, want := range sizes {
		require.Equal(t, want, byteSize(n), strings.TrimSpace(want))
	}
}
