package snapshot_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/snapshot"
)

const (
	version = "718sh0nk7"
	place   = "718sh0nk8"
)

var madeAt = time.Date(2024, 2, 29, 12, 34, 56, 789_000_000, time.UTC)

// item is a table of two columns.
func item(name string) snapshot.Table {
	return snapshot.Table{
		Schema: "public", Name: name, ReplicaIdentity: "default",
		Columns: []snapshot.Column{{Name: "id", TypeOID: 23, Type: "integer", Key: true}, {Name: "v", TypeOID: 25, Type: "text"}},
	}
}

// write makes a snapshot of tables from the text of COPY.
func write(t *testing.T, dir string, compression snapshot.Compression, tables []snapshot.Table, texts ...string) {
	t.Helper()
	folder, err := snapshot.Create(dir, compression)
	require.NoError(t, err)
	m := snapshot.Manifest{
		ReplicaVersion: version, Watermark: place, CreatedAt: madeAt, Publications: []string{"p"}, Tables: tables,
	}
	for i := range m.Tables {
		file, err := folder.Table(i+1, m.Tables[i].Schema, m.Tables[i].Name)
		require.NoError(t, err)
		_, err = file.Write([]byte(texts[i]))
		require.NoError(t, err)
		require.NoError(t, file.Finish(&m.Tables[i]))
	}
	require.NoError(t, folder.Finish(m))
}

// replayed are the messages of a folder.
func replayed(t *testing.T, dir string) (messages []string, err error) {
	t.Helper()
	reader, err := snapshot.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := reader.Verify(t.Context()); err != nil {
		return nil, err
	}
	err = reader.Replay(t.Context(), snapshot.ReplayConfig{Message: func(_ change.Kind, message []byte) error {
		messages = append(messages, string(message))
		return nil
	}})
	return messages, err
}

func names(t *testing.T, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}

func TestSnapshotIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for compression, extension := range map[snapshot.Compression]string{snapshot.Zstd: ".zst", snapshot.Gzip: ".gz", snapshot.None: ""} {
		t.Run(string(compression), func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "new", "copy")
			long := strings.Repeat("é", 1<<20)
			write(t, dir, compression, []snapshot.Table{item("item"), item("empty")}, "1\ta\\tb\n2\t\\N\n3\t"+long+"\n", "")
			require.Equal(t, []string{"00001-public-item.copy" + extension, "00002-public-empty.copy" + extension, "manifest.json"}, names(t, dir))
			info, err := os.Stat(dir)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), "it is nobody else's business")

			got, err := replayed(t, dir)
			require.NoError(t, err)
			relation := `"relation":{"schema":"public","name":"item","rowKey":{"columns":["id"],"type":"default"}}`
			require.Equal(t, []string{
				`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"718sh0nk8"}]`,
				`["data",{"tag":"insert",` + relation + `,"new":{"id":1,"v":"a\tb"}}]`,
				`["data",{"tag":"insert",` + relation + `,"new":{"id":2,"v":null}}]`,
				`["data",{"tag":"insert",` + relation + `,"new":{"id":3,"v":"` + long + `"}}]`,
				`["commit",{"tag":"commit","commitTimeMs":1709210096789},{"watermark":"718sh0nk8"}]`,
			}, got)

			reader, err := snapshot.Open(dir)
			require.NoError(t, err)
			m := reader.Manifest()
			require.Equal(t, int64(3), m.Tables[0].Rows)
			require.Equal(t, int64(len("1\ta\\tb\n2\t\\N\n3\t\n")+len(long)), m.Tables[0].RawBytes)
			content, err := os.ReadFile(filepath.Join(dir, m.Tables[0].File))
			require.NoError(t, err)
			sum := sha256.Sum256(content)
			require.Equal(t, hex.EncodeToString(sum[:]), m.Tables[0].SHA256)
			require.Equal(t, int64(len(content)), m.Tables[0].Bytes)
		})
	}
}

func TestSnapshotWithoutRowsIsATransactionToo(t *testing.T) {
	t.Parallel()
	for name, tables := range map[string][]snapshot.Table{"no tables": {}, "no rows": {item("item")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, snapshot.Zstd, tables, "")
			got, err := replayed(t, dir)
			require.NoError(t, err)
			require.Equal(t, []string{
				`["begin",{"tag":"begin","json":"s"},{"commitWatermark":"718sh0nk8"}]`,
				`["commit",{"tag":"commit","commitTimeMs":1709210096789},{"watermark":"718sh0nk8"}]`,
			}, got)
		})
	}
}

// change rewrites a file; digest makes it one that belongs together.
func rewrite(t *testing.T, dir, name string, change func(content string) string) {
	t.Helper()
	path := filepath.Join(dir, name)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := change(string(content))
	require.NotEqual(t, string(content), changed)
	require.NoError(t, os.WriteFile(path, []byte(changed), 0o600))
}

var digest = regexp.MustCompile(`"digest": "[0-9a-f]{64}"`)

func sealed(manifest string) string {
	zeros := digest.ReplaceAllString(manifest, `"digest": "`+strings.Repeat("0", 64)+`"`)
	sum := sha256.Sum256([]byte(zeros))
	return digest.ReplaceAllString(manifest, `"digest": "`+hex.EncodeToString(sum[:])+`"`)
}

func TestDamagedSnapshots(t *testing.T) {
	t.Parallel()
	const file = "00001-public-item.copy"
	replace := func(old, with string) func(string) string {
		return func(content string) string { return strings.Replace(content, old, with, 1) }
	}
	sealedReplace := func(old, with string) func(string) string {
		return func(content string) string { return sealed(strings.Replace(content, old, with, 1)) }
	}
	tests := []struct {
		name, file string
		change     func(content string) string
		want       string
	}{
		{"a byte of a file", file, replace("a", "b"), "has the digest"},
		{"a file that is too short", file, func(s string) string { return s[:len(s)-1] }, "has 7 bytes instead of 8"},
		{"a file that is too long", file, func(s string) string { return s + "3\tc\n" }, "has 12 bytes instead of 8"},
		{"a byte of the manifest", "manifest.json", replace(`"name": "v"`, `"name": "w"`), "its digest is another one"},
		{"a manifest that is cut", "manifest.json", func(s string) string { return s[:len(s)/2] }, "unexpected end of JSON input"},
		{"an empty manifest", "manifest.json", func(string) string { return "" }, "unexpected end of JSON input"},
		{"a manifest without a digest", "manifest.json", func(s string) string { return digest.ReplaceAllString(s, `"digest": ""`) }, "it has no digest"},
		{"another program's JSON", "manifest.json", func(string) string { return `{"format": 1}` }, "it has no digest"},
		{"a newer format", "manifest.json", sealedReplace(`"format": 1`, `"format": 2`), "its format is 2; this program knows format 1"},
		{"a watermark that is none", "manifest.json", sealedReplace(place, "zzz"), "not a watermark"},
		{"a compression that is none", "manifest.json", sealedReplace(`"none"`, `"lz4"`), `compression "lz4"`},
		{"a file elsewhere", "manifest.json", sealedReplace(file, "../"+file), "is no name of its file"},
		{"an identity that is none", "manifest.json", sealedReplace(`"default"`, `"best"`), `"best" is no replica identity`},
		{"fewer rows", "manifest.json", sealedReplace(`"rows": 2`, `"rows": 3`), "has 2 rows instead of 3"},
		{"a type that nobody knows", "manifest.json", sealedReplace(`"type_oid": 25`, `"type_oid": 99999`), "it is not in the manifest"},
		{"a column less", "manifest.json", sealedReplace(`"columns": [`, `"columns": [{"name": "more", "type_oid": 23, "type": "integer"},`), "not the 3 columns"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, snapshot.None, []snapshot.Table{item("item")}, "1\ta\n2\tb\n")
			rewrite(t, dir, tt.file, tt.change)
			_, err := replayed(t, dir)
			require.ErrorIs(t, err, snapshot.ErrDamaged)
			require.ErrorContains(t, err, tt.want)
		})
	}
	t.Run("files that are missing", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		_, err := snapshot.Open(dir)
		require.ErrorIs(t, err, snapshot.ErrDamaged)
		write(t, dir, snapshot.Zstd, []snapshot.Table{item("item")}, "1\ta\n")
		require.NoError(t, os.Remove(filepath.Join(dir, file+".zst")))
		_, err = snapshot.Open(dir)
		require.ErrorIs(t, err, snapshot.ErrDamaged)
	})
	t.Run("changed after it was looked at", func(t *testing.T) {
		t.Parallel()
		for _, compression := range []snapshot.Compression{snapshot.Zstd, snapshot.Gzip, snapshot.None} {
			dir := t.TempDir()
			write(t, dir, compression, []snapshot.Table{item("item")}, "1\ta\n2\tb\n")
			reader, err := snapshot.Open(dir)
			require.NoError(t, err)
			require.NoError(t, reader.Verify(t.Context()))
			rewrite(t, dir, reader.Manifest().Tables[0].File, func(s string) string { return s[:len(s)-3] + "xyz" })
			committed := false
			err = reader.Replay(t.Context(), snapshot.ReplayConfig{Message: func(kind change.Kind, _ []byte) error {
				committed = committed || kind == change.Commit
				return nil
			}})
			require.ErrorIs(t, err, snapshot.ErrDamaged)
			require.False(t, committed)
		}
	})
}

func TestReplayEndsWithItsReader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, snapshot.Zstd, []snapshot.Table{item("item")}, "1\ta\n2\tb\n")
	reader, err := snapshot.Open(dir)
	require.NoError(t, err)
	enough := errors.New("enough")
	seen := 0
	err = reader.Replay(t.Context(), snapshot.ReplayConfig{Message: func(change.Kind, []byte) error {
		if seen++; seen == 2 {
			return enough
		}
		return nil
	}})
	require.ErrorIs(t, err, enough)
	require.Equal(t, 2, seen)
}

func TestFoldersThatAreRefused(t *testing.T) {
	t.Parallel()
	put := func(t *testing.T, dir string, files ...string) {
		t.Helper()
		for _, name := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o600))
		}
	}
	tests := []struct {
		name  string
		files []string
		want  string
	}{
		{"somebody's file", []string{"notes.txt"}, "is not empty: it has notes.txt"},
		{"somebody's file beside leftovers", []string{"in-progress", "00001-public-item.copy.zst.tmp", "notes.txt"}, "it has notes.txt"},
		{"files of tables that nobody has begun", []string{"00001-public-item.copy.zst"}, "it has 00001-public-item.copy.zst"},
		{"a snapshot", []string{"00001-public-item.copy.zst", "manifest.json"}, "has a snapshot already"},
		{"a snapshot whose mark is left", []string{"in-progress", "manifest.json"}, "has a snapshot already"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, dir, tt.files...)
			before := names(t, dir)
			_, err := snapshot.Create(dir, snapshot.Zstd)
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, before, names(t, dir), "nothing is touched")
		})
	}
	t.Run("a folder where a file would be", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		put(t, dir, "in-progress")
		require.NoError(t, os.Mkdir(filepath.Join(dir, "00001-public-item.copy"), 0o700))
		_, err := snapshot.Create(dir, snapshot.Zstd)
		require.ErrorContains(t, err, "is not empty")
	})
	t.Run("a file", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		put(t, dir, "file")
		_, err := snapshot.Create(filepath.Join(dir, "file"), snapshot.Zstd)
		require.ErrorContains(t, err, "make the folder")
	})
	t.Run("written by another one", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		first, err := snapshot.Create(dir, snapshot.Zstd)
		require.NoError(t, err)
		file, err := first.Table(1, "public", "item")
		require.NoError(t, err)
		_, err = snapshot.Create(dir, snapshot.Zstd)
		require.ErrorContains(t, err, "is being written by another one (process ")
		require.Contains(t, names(t, dir), "00001-public-item.copy.zst.tmp")
		file.Abandon()
		require.NoError(t, first.Discard())
		require.Empty(t, names(t, dir))
		require.DirExists(t, dir, "it was there before")
	})
}

func TestLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{
		"in-progress", "00001-public-item.copy.zst", "00002-a-b.copy.gz", "00003-c-d.copy", "00004-e-f.copy.zst.tmp", "manifest.json.tmp",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600))
	}
	write(t, dir, snapshot.Zstd, []snapshot.Table{item("item")}, "1\ta\n")
	require.Equal(t, []string{"00001-public-item.copy.zst", "manifest.json"}, names(t, dir))
	_, err := replayed(t, dir)
	require.NoError(t, err)
}

func TestDiscardLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "copy")
	folder, err := snapshot.Create(dir, snapshot.Zstd)
	require.NoError(t, err)
	for i, name := range []string{"whole", "half"} {
		file, err := folder.Table(i+1, "public", name)
		require.NoError(t, err)
		_, err = file.Write([]byte("1\ta\n"))
		require.NoError(t, err)
		if name == "half" {
			file.Abandon()
			continue
		}
		var table snapshot.Table
		require.NoError(t, file.Finish(&table))
	}
	require.NoError(t, folder.Discard())
	require.NoDirExists(t, dir)
}

func TestNamesOfFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tables := []snapshot.Table{
		item("../../etc"), item(`a"b c/d\e`), item("Item"), item("item"), item(strings.Repeat("é", 31)), item("con"), item(".."), item("-rf"),
	}
	texts := make([]string, len(tables))
	for i := range texts {
		texts[i] = "1\tx\n"
	}
	tables[6].Schema = "." // and a schema of that kind
	write(t, dir, snapshot.None, tables, texts...)
	list := names(t, dir)
	require.Len(t, list, len(tables)+1)
	safe := regexp.MustCompile(`^[0-9]{5}-[A-Za-z0-9_-]{1,60}\.copy$`)
	for _, name := range list[:len(tables)] {
		require.Regexp(t, safe, name)
	}
	messages, err := replayed(t, dir)
	require.NoError(t, err)
	require.Len(t, messages, len(tables)+2)
	require.Contains(t, messages[2], `"name":"a\"b c/d\\e"`)
}
