package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/client"
	"millrace/streamer/snapshot"
)

const copied = "110" // the history of the snapshots here

// copyOf makes a snapshot at a watermark, of a table with one row for each text.
func copyOf(t *testing.T, watermark string, texts ...string) string {
	t.Helper()
	dir := t.TempDir()
	folder, err := snapshot.Create(dir, snapshot.Zstd)
	require.NoError(t, err)
	table := snapshot.Table{
		Schema: "public", Name: "t", ReplicaIdentity: "nothing", Columns: []snapshot.Column{{Name: "f", TypeOID: 701}},
	}
	file, err := folder.Table(1, table.Schema, table.Name)
	require.NoError(t, err)
	_, err = file.Write([]byte(strings.Join(texts, "\n") + "\n"))
	require.NoError(t, err)
	require.NoError(t, file.Finish(&table))
	require.NoError(t, folder.Finish(snapshot.Manifest{
		ReplicaVersion: copied, Watermark: watermark, CreatedAt: time.UnixMilli(7).UTC(), Tables: []snapshot.Table{table},
	}))
	return dir
}

func rowOf(value string) string {
	return `["data",{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":[],"type":"nothing"}},"new":{"f":` + value + `}}]`
}

func TestStartFromASnapshot(t *testing.T) {
	t.Parallel()
	s := serve(t, func(n int, p *peer) {
		p.accept()
		if n == 1 {
			return // lost before anything came: the place stays the same
		}
		p.send(tx("140", 1)...)
		_, _ = p.waitEnd()
	})
	cfg := config(s, nil)
	cfg.Watermark, cfg.ReplicaVersion = "", ""
	cfg.Snapshot, cfg.NonFiniteStrings = copyOf(t, "130", "1", "NaN"), true
	cfg.Resolved = func(context.Context, client.Position) error { return errors.New("there is nothing to resolve") }
	var persisted []client.Position
	cfg.Persist = func(_ context.Context, p client.Position) error {
		persisted = append(persisted, p)
		return nil
	}
	messages := runUntil(t, cfg, 4+3)
	require.Equal(t, append([]string{
		`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"130"}]`, rowOf("1"), rowOf(`"NaN"`),
		`["commit",{"tag":"commit","commitTimeMs":7},{"watermark":"130"}]`,
	}, tx("140", 1)...), messages)
	require.Equal(t, []client.Position{{ReplicaVersion: copied, Watermark: "130"}, {ReplicaVersion: copied, Watermark: "140"}}, persisted)
	for _, query := range s.queries() {
		require.Equal(t, "130", query.Get("watermark"))
		require.Equal(t, copied, query.Get("replicaVersion"))
	}
	at, err := client.SnapshotPosition(cfg.Snapshot)
	require.NoError(t, err)
	require.Equal(t, persisted[0], at)
}

func TestCallersErrorsEndASnapshot(t *testing.T) {
	t.Parallel()
	errOwn := errors.New("own")
	folder := copyOf(t, "130", "1", "2", "3")
	failAt := func(kind client.Kind, messages *int) func(context.Context, client.Message) error {
		return func(_ context.Context, m client.Message) error {
			*messages++
			if m.Kind == kind {
				return errOwn
			}
			return nil
		}
	}
	for name, kind := range map[string]client.Kind{"begin": client.Begin, "data": client.Data, "commit": client.Commit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			messages := 0
			err := run(t, t.Context(), client.Config{
				URL: "ws://127.0.0.1:1", Snapshot: folder, Handler: failAt(kind, &messages),
				Persist: func(context.Context, client.Position) error { return errors.New("nothing to persist") },
			})
			require.Equal(t, errOwn, err, "as it is")
			require.Equal(t, map[string]int{"begin": 1, "data": 2, "commit": 5}[name], messages, "nothing is told behind it")
		})
	}
	nothing := func(context.Context, client.Message) error { return nil }
	require.ErrorIs(t, run(t, t.Context(), client.Config{
		URL: "ws://127.0.0.1:1", Snapshot: folder, Handler: nothing,
		Persist: func(context.Context, client.Position) error { return errOwn },
	}), errOwn)
	require.ErrorIs(t, run(t, t.Context(), client.Config{
		URL: "ws://127.0.0.1:1", Snapshot: folder, Handler: nothing, Idle: func() error { return errOwn },
	}), errOwn)
	require.ErrorIs(t, run(t, t.Context(), client.Config{URL: "ws://127.0.0.1:1", Snapshot: t.TempDir(), Handler: nothing}), snapshot.ErrDamaged)
}

func TestStopInsideASnapshot(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var kinds []client.Kind
	require.NoError(t, run(t, ctx, client.Config{
		URL: "ws://127.0.0.1:1", Snapshot: copyOf(t, "130", "1", "2", "3"),
		Handler: func(_ context.Context, m client.Message) error {
			kinds = append(kinds, m.Kind)
			if m.Kind == client.Data {
				cancel()
			}
			return nil
		},
	}))
	require.Equal(t, []client.Kind{client.Begin, client.Data, client.Rollback}, kinds)
}
