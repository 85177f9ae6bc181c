package server_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/server"
)

// The handshakes that the compatible peer refused, recorded from it: the same requests get
// the same frames and the same close, byte for byte but for the replica version.
func TestRefusalsAreThoseOfThePeer(t *testing.T) {
	t.Parallel()

	const recorded = "4l0kko" // the peer's replica version
	tests := []struct {
		name, target string
	}{
		{name: "missing-id", target: "/replication/v6/changes?taskID=t&replicaVersion=4l2ggw&watermark=4l2ggw"},
		{name: "missing-replicaVersion", target: "/replication/v6/changes?id=a&taskID=t&watermark=4l2ggw"},
		{name: "missing-watermark", target: "/replication/v6/changes?id=a&taskID=t&replicaVersion=4l2ggw"},
		{name: "snapshot-no-task", target: "/replication/v6/snapshot"},
		{name: "v7", target: "/replication/v7/changes?" + goodQuery},
		{name: "before-replica-version", target: "/replication/v6/changes?id=a&taskID=t&replicaVersion=4l2ggw&watermark=00"},
		{name: "wrong-version", target: "/replication/v6/changes?id=a&taskID=t&replicaVersion=1abc&watermark=4l2ggw"},
	}
	r := serve(t, func(cfg *server.Config) { cfg.MinVersion = 1 }) // as the peer
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file, err := os.Open("testdata/j-" + tt.name + ".jsonl")
			require.NoError(t, err)
			defer file.Close()

			ws := r.dial(t, tt.target)
			closed := false
			id := uint64(0)
			for lines := bufio.NewScanner(file); lines.Scan(); {
				var end struct {
					Close *struct {
						Code   int
						Reason string
					}
				}
				line := strings.ReplaceAll(lines.Text(), recorded, replicaVersion)
				require.NoError(t, json.Unmarshal([]byte(line), &end))
				if end.Close == nil {
					id++
					expect(t, ws, line)
					ack(t, ws, id)
					continue
				}
				expectClose(t, ws, end.Close.Code, end.Close.Reason)
				closed = true
			}
			require.True(t, closed)
		})
	}
}
