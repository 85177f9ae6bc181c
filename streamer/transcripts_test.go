package streamer_test

import (
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// played is what a scenario has left behind: where it lies in the log, what came live.
type played struct {
	name     string
	from, to string // watermark before it, watermark of the mark behind it
	mark     int
	live     []frame
}

// Every recorded scenario gives its recorded frames: live, again from memory, stored, and
// from the log after a restart; the messages byte for byte the same each time.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	b := newStage(t, "up", func(p *player) {
		require.Empty(t, p.playScript(t, "seed", `
			create table seed (id int primary key, v text);
			create publication up for tables in schema public with (publish_via_partition_root)`))
	})
	live := b.subscribe(t, b.head(t))
	var all []played
	for _, s := range scenarios {
		t.Run("live: "+s.name, func(t *testing.T) { all = append(all, b.playScenario(t, live, s)) })
	}
	require.Len(t, all, len(scenarios))

	for _, s := range all {
		t.Run("again: "+s.name, func(t *testing.T) {
			again := b.subscribe(t, s.from)
			requireSameBytes(t, s.live, again.until(t, s.mark), "read again")
		})
		t.Run("stored: "+s.name, func(t *testing.T) {
			stored, err := framesOf(b.stored(t, s.from, s.to))
			require.NoError(t, err)
			requireSameBytes(t, s.live, stored, "stored")
			want, err := framesOf(loadRows(t, recordedFile(t, s.name+".changelog.jsonl")))
			require.NoError(t, err)
			requireSame(t, want, stored, "stored")
		})
	}

	// A new process has nothing in memory: what it sends is read from the log.
	live.close()
	b.stop()
	b.start(t)
	for _, s := range all {
		t.Run("catch-up: "+s.name, func(t *testing.T) {
			late := b.subscribe(t, s.from)
			got := late.until(t, s.mark)
			require.Equal(t, s.to, late.last)
			requireSameBytes(t, s.live, got, "catch-up")
			requireSame(t, loadFrames(t, recordedFile(t, s.name+".jsonl")), got, "catch-up")
		})
	}
}

// playScenario plays one scenario while live, which has read everything before, reads on.
func (b *stage) playScenario(t *testing.T, live *reader, s scenario) played {
	t.Helper()
	if s.setup {
		require.Empty(t, b.player.play(t, filepath.Join(transcripts, s.name+".setup.sql")))
	}
	live.until(t, b.mark(t))
	p := played{name: s.name, from: live.last}
	require.Equal(t, s.refused, b.player.play(t, filepath.Join(transcripts, s.name+".sql")))
	p.mark = b.mark(t)
	p.live = live.until(t, p.mark)
	p.to = live.last
	requireSame(t, loadFrames(t, recordedFile(t, s.name+".jsonl")), p.live, "live")
	return p
}

// Handshakes, on a database with one row before the start and four transactions after it.
func TestHandshakes(t *testing.T) {
	t.Parallel()
	b := newStage(t, "up", func(p *player) {
		require.Empty(t, p.playScript(t, "seed", `
			create table seed (id int primary key, v text);
			insert into seed values (0, 'z');
			create publication up for tables in schema public`))
	})
	live := b.subscribe(t, b.replicaVersion)
	var middle string // behind the second transaction
	for i, sql := range []string{
		"insert into seed values (1, 'v1')", "insert into seed values (2, 'v2')",
		"insert into seed values (3, 'v3')", "insert into seed values (4, 'v4')",
	} {
		require.Empty(t, b.player.playScript(t, "insert", sql))
		if i == 1 {
			live.until(t, b.mark(t))
			middle = live.last
		}
	}
	end := b.mark(t)
	live.until(t, end)
	b.stored(t, b.replicaVersion, live.last)
	changes := "/replication/v6/changes"

	for _, tt := range []struct{ name, path, watermark string }{
		{"from-start", changes, b.replicaVersion},
		{"from-middle", changes, middle},
		{"v4", "/replication/v4/changes", b.replicaVersion},
		{"v5", "/replication/v5/changes", b.replicaVersion},
		{"v6", changes, b.replicaVersion},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := b.dial(t, tt.path, b.request(tt.watermark)).until(t, end)
			require.JSONEq(t, `["status",{"tag":"status"}]`, string(got[0].Msg))
			requireSame(t, loadFrames(t, recordedFile(t, "j-"+tt.name+".jsonl")), got, "frames")
			if tt.name == "v4" {
				require.Contains(t, string(got[2].Msg), `"keyColumns":["id"]`)
			}
		})
	}

	t.Run("current", func(t *testing.T) {
		r := b.subscribe(t, live.last)
		got := r.until(t, b.mark(t))
		requireSame(t, loadFrames(t, recordedFile(t, "j-current.jsonl")), got, "nothing but the mark")
	})

	t.Run("ahead", func(t *testing.T) {
		r := b.subscribe(t, "zzzzzzzz")
		live.until(t, b.mark(t)) // which lies before it
		r.quiet(t)
		requireSame(t, loadFrames(t, recordedFile(t, "j-ahead.jsonl")), nil, "nothing but a status")
	})

	without := func(name string) url.Values {
		parameters := b.request(live.last)
		parameters.Del(name)
		return parameters
	}
	with := func(name, value string) url.Values {
		parameters := b.request(live.last)
		parameters.Set(name, value)
		return parameters
	}
	minimum := b.queryText(t, `select min(c.watermark) from cdc."changeLog" as c`)
	for _, tt := range []struct {
		name, path string
		parameters url.Values
		message    string // of the error, if there is one
	}{
		{
			name: "before-replica-version", path: changes, parameters: with("watermark", "00"),
			message: "earliest supported watermark is " + minimum + " (requested 00)",
		},
		{
			name: "wrong-version", path: changes, parameters: with("replicaVersion", "1abc"),
			message: "current replica version is " + b.replicaVersion + " (requested 1abc)",
		},
		{name: "missing-id", path: changes, parameters: without("id")},
		{name: "missing-replicaVersion", path: changes, parameters: without("replicaVersion")},
		{name: "missing-watermark", path: changes, parameters: without("watermark")},
		{name: "snapshot-no-task", path: "/replication/v6/snapshot", parameters: url.Values{}},
		{name: "v3", path: "/replication/v3/changes", parameters: b.request(live.last)},
		{name: "v7", path: "/replication/v7/changes", parameters: b.request(live.last)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := loadFrames(t, recordedFile(t, "j-"+tt.name+".jsonl"))
			if tt.parameters.Has("taskID") {
				tt.parameters.Set("taskID", tt.name) // closes of one task are held back longer and longer
			}
			r := b.dial(t, tt.path, tt.parameters)
			var got []frame
			for len(got) == 0 || got[len(got)-1].Close == nil {
				got = append(got, r.read(t))
			}
			requireSame(t, want, got, "frames")
			require.Equal(t, want[len(want)-1].Close, got[len(got)-1].Close)
			if tt.message != "" {
				require.Contains(t, string(got[0].Msg), `"message":"`+tt.message+`"`)
			}
		})
	}
}
