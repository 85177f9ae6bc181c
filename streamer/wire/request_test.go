package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"millrace/streamer/wire"
)

func TestParse(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name  string
		path  string
		query string
		want  wire.Request
	}{
		{
			name:  "as the peer's subscriber asks",
			path:  "/replication/v6/changes",
			query: "taskID=fkvs&id=fkvs%2Fserving-replicator-16703&mode=serving&watermark=4l2ggw&replicaVersion=4l2ggw&initial=true",
			want: wire.Request{
				Version: 6, Action: wire.Changes, ID: "fkvs/serving-replicator-16703", TaskID: "fkvs", Mode: wire.Serving,
				ReplicaVersion: "4l2ggw", Watermark: "4l2ggw", Initial: true, MaxMessageBytes: wire.MaxFrame,
			},
		},
		{
			name:  "backup, with everything else",
			path:  "/replication/v4/changes",
			query: "id=a+b&taskID=t&mode=backup&replicaVersion=r&watermark=4l2ggw.01&initial=1&logsChangeStream=true&maxMessageBytes=1000000000&x",
			want: wire.Request{
				Version: 4, Action: wire.Changes, ID: "a b", TaskID: "t", Mode: wire.Backup,
				ReplicaVersion: "r", Watermark: "4l2ggw.01", MaxMessageBytes: 1_000_000_000,
			},
		},
		{
			name:  "ahead of every watermark",
			path:  "/replication/v05/changes",
			query: "id=a&taskID=t&replicaVersion=r&watermark=zzzzzzzz",
			want: wire.Request{
				Version: 5, Action: wire.Changes, ID: "a", TaskID: "t", Mode: wire.Serving,
				ReplicaVersion: "r", Watermark: "zzzzzzzz", MaxMessageBytes: wire.MaxFrame,
			},
		},
		{
			name:  "the first of a name counts, broken escapes stand for themselves",
			path:  "/replication/v6/changes",
			query: "id=100%&id=b&taskID=%zz&mode=other&replicaVersion=%C3%A4;&watermark=%E2%82%AC",
			want: wire.Request{
				Version: 6, Action: wire.Changes, ID: "100%", TaskID: "%zz", Mode: wire.Serving,
				ReplicaVersion: "ä;", Watermark: "€", MaxMessageBytes: wire.MaxFrame,
			},
		},
		{
			name: "snapshot", path: "/replication/v6/snapshot", query: "taskID=t",
			want: wire.Request{
				Version: 6, Action: wire.Snapshot, TaskID: "t", Mode: wire.Serving, MaxMessageBytes: wire.MaxFrame,
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got, err := wire.Parse(tt.path, tt.query)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()

	const (
		changes = "/replication/v6/changes"
		good    = "id=i&taskID=t&replicaVersion=r&watermark="
	)
	tests := []struct {
		name, path, query, want string
	}{
		{name: "version without a number", path: "/replication/vx/changes", want: "Error: invalid path: /replication/vx/changes"},
		{name: "signed version", path: "/replication/v+6/changes", want: "Error: invalid path: /replication/v+6/changes"},
		{
			name: "too high a version, before all parameters", path: "/replication/v7/changes",
			want: "Error: Cannot service client at protocol v7. Supported protocols: [v4 ... v6]",
		},
		{
			name: "too low a version", path: "/replication/v3/changes", query: good + "00",
			want: "Error: Cannot service client at protocol v3. Supported protocols: [v4 ... v6]",
		},
		{
			name: "version zero", path: "/replication/v000/changes",
			want: "Error: Cannot service client at protocol v0. Supported protocols: [v4 ... v6]",
		},
		{
			name: "version beyond all numbers", path: "/replication/v99999999999999999999/snapshot",
			want: "Error: Cannot service client at protocol v99999999999999999999. Supported protocols: [v4 ... v6]",
		},
		{name: "nothing given", path: changes, want: "Error: invalid querystring - missing id"},
		{name: "empty id", path: changes, query: "id=&taskID=t", want: "Error: invalid querystring - missing id"},
		{name: "no task", path: changes, query: "id=i", want: "Error: invalid querystring - missing taskID"},
		{name: "no replica version", path: changes, query: "id=i&taskID=t", want: "Error: invalid querystring - missing replicaVersion"},
		{name: "no watermark", path: changes, query: "id=i&taskID=t&replicaVersion=r", want: "Error: invalid querystring - missing watermark"},
		{name: "empty watermark", path: changes, query: good, want: "Error: invalid querystring - missing watermark"},
		{
			name: "watermark with a quote", path: changes, query: good + "a%22",
			want: `Error: invalid querystring - watermark is not a watermark: "a\""`,
		},
		{
			name: "watermark with a backslash", path: changes, query: good + "%5C",
			want: `Error: invalid querystring - watermark is not a watermark: "\\"`,
		},
		{
			name: "watermark with a control character", path: changes, query: good + "a%00",
			want: `Error: invalid querystring - watermark is not a watermark: "a\x00"`,
		},
		{
			name: "message limit", path: changes, query: good + "00&maxMessageBytes=0",
			want: `Error: invalid querystring - maxMessageBytes is not a number from 1 to 1073741824: "0"`,
		},
		{name: "snapshot without task", path: "/replication/v6/snapshot", query: "id=i", want: "Error: Missing taskID in snapshot request"},
		{
			name: "snapshot at too high a version", path: "/replication/v7/snapshot", query: "taskID=t",
			want: "Error: Cannot service client at protocol v7. Supported protocols: [v4 ... v6]",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			_, err := wire.Parse(tt.path, tt.query)
			var end *wire.Close
			require.ErrorAs(t, err, &end)
			require.Equal(t, &wire.Close{Code: 1002, Reason: tt.want, Delay: true}, end)
			require.Contains(t, err.Error(), tt.want)
			require.Equal(t, !strings.Contains(tt.want, "invalid path"), wire.Rules{}.IsPath(tt.path))
		})
	}
}

func TestParseRefusesAWatermarkOfAnyLength(t *testing.T) {
	t.Parallel()

	_, err := wire.Parse("/replication/v6/changes", "id=i&taskID=t&replicaVersion=r&watermark="+strings.Repeat("a", 257))
	require.ErrorContains(t, err, "watermark is not a watermark")
}

func TestParseAnOlderVersion(t *testing.T) {
	t.Parallel()

	r, err := wire.Rules{Oldest: 1}.Parse("/replication/v3/changes", "id=i&replicaVersion=r&watermark=00")
	require.NoError(t, err)
	require.Equal(t, 3, r.Version)
	require.Empty(t, r.TaskID)

	_, err = wire.Rules{Oldest: 1}.Parse("/replication/v4/changes", "id=i&replicaVersion=r&watermark=00")
	require.ErrorContains(t, err, "missing taskID")
	_, err = wire.Rules{Oldest: 1}.Parse("/replication/v0/changes", "")
	require.ErrorContains(t, err, "[v1 ... v6]")
}

func TestRequestsComeBackAsTheyWereMade(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(1, 20, -1)
		want := wire.Request{
			Version:         rapid.IntRange(wire.MinVersion, wire.MaxVersion).Draw(t, "version"),
			Action:          wire.Changes,
			ID:              text.Draw(t, "id"),
			TaskID:          text.Draw(t, "task"),
			Mode:            rapid.SampledFrom([]string{wire.Serving, wire.Backup}).Draw(t, "mode"),
			ReplicaVersion:  text.Draw(t, "replica version"),
			Watermark:       rapid.StringMatching(`[0-9a-z]{1,20}(\.[0-9a-z]{1,5})?`).Draw(t, "watermark"),
			Initial:         rapid.Bool().Draw(t, "initial"),
			MaxMessageBytes: rapid.Int64Range(1, 1<<30).Draw(t, "limit"),
		}
		got, err := wire.Parse(want.Path(), want.Query())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func FuzzParse(f *testing.F) {
	f.Add("/replication/v6/changes", "id=a&taskID=t&replicaVersion=r&watermark=4l2ggw&mode=backup")
	f.Add("/replication/v6/snapshot", "taskID=%zz")
	f.Add("/replication/v99999999999999999999999/changes", "")
	f.Fuzz(func(t *testing.T, path, query string) {
		r, err := wire.Parse(path, query)
		if err != nil {
			var end *wire.Close
			require.ErrorAs(t, err, &end)
			if end.Code != wire.CloseInternal {
				require.Equal(t, wire.CloseProtocol, end.Code)
				require.True(t, strings.HasPrefix(end.Reason, "Error: "))
			}
			return
		}
		require.NotContains(t, r.Watermark, `"`)
		again, err := wire.Parse(r.Path(), r.Query())
		require.NoError(t, err)
		if r.Action == wire.Changes {
			require.Equal(t, r, again)
		}
	})
}
