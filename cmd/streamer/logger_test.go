package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLogsAreReadable(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "log")
	file, err := os.Create(name)
	require.NoError(t, err)
	defer file.Close()
	log := newLogger(file, slog.LevelInfo)
	log.DebugContext(t.Context(), "not of interest")
	log.With("duration", 25*time.Millisecond).InfoContext(t.Context(), "waited",
		slog.Group("part", "duration", 90*time.Second), "num_bytes", 7)

	content, err := os.ReadFile(name)
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal(content, &line))
	require.Equal(t, "25ms", line["duration"])
	require.Equal(t, map[string]any{"duration": "1m30s"}, line["part"])
	require.InDelta(t, 7, line["num_bytes"], 0)
	_, err = time.Parse(time.RFC3339Nano, line["time"].(string))
	require.NoError(t, err)
}
