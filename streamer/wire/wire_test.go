package wire_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
	"millrace/streamer/wire"
)

func TestHasStatus(t *testing.T) {
	t.Parallel()

	require.False(t, wire.HasStatus(1))
	require.True(t, wire.HasStatus(2))
}

func TestAppendForVersion(t *testing.T) {
	t.Parallel()

	const (
		insert   = `["data",{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":["id","b"],"type":"default"}},"new":{"id":1,"relation":{"rowKey":{"columns":["x"]}}}}]`
		untyped  = `["data",{"tag":"delete","relation":{"schema":"public","name":"t","rowKey":{"columns":["id"]}},"key":{"id":1}}]`
		truncate = `["data",{"tag":"truncate","relations":[{"rowKey":{"columns":["a"],"type":"full"}},{"rowKey":{"columns":[]}}]}]`
		peer     = `["data",{"tag":"insert","relation":{"rowKey":{"columns":["id"],"type":"default"},"keyColumns":["id"],"replicaIdentity":"default"},"new":{}}]`
		last     = `[ "data" , { "new" : {"a":"}\""} , "tag":"insert", "relation" : { "rowKey" : { "type" : "index" , "columns" : [ "]" ] } , "n":-1.5e3 } } ]`
	)
	tests := []struct {
		name    string
		message string
		tag     change.Tag
		version int
		want    string
	}{
		{name: "current version", message: insert, tag: change.Insert, version: 5, want: insert},
		{
			name: "one relation", message: insert, tag: change.Insert, version: 4,
			want: `["data",{"tag":"insert","relation":{"schema":"public","name":"t","rowKey":{"columns":["id","b"],"type":"default"},"keyColumns":["id","b"],"replicaIdentity":"default"},"new":{"id":1,"relation":{"rowKey":{"columns":["x"]}}}}]`,
		},
		{
			name: "row key without type", message: untyped, tag: change.Delete, version: 4,
			want: `["data",{"tag":"delete","relation":{"schema":"public","name":"t","rowKey":{"columns":["id"]},"keyColumns":["id"]},"key":{"id":1}}]`,
		},
		{
			name: "several relations", message: truncate, tag: change.Truncate, version: 1,
			want: `["data",{"tag":"truncate","relations":[{"rowKey":{"columns":["a"],"type":"full"},"keyColumns":["a"],"replicaIdentity":"full"},{"rowKey":{"columns":[]},"keyColumns":[]}]}]`,
		},
		{name: "old form beside the new", message: peer, tag: change.Insert, version: 4, want: peer},
		{
			name: "blanks and another order", message: last, tag: change.Insert, version: 4,
			want: `[ "data" , { "new" : {"a":"}\""} , "tag":"insert", "relation" : { "rowKey" : { "type" : "index" , "columns" : [ "]" ] } , "n":-1.5e3 ,"keyColumns":[ "]" ],"replicaIdentity":"index"} } ]`,
		},
		{name: "tag without relation", message: insert, tag: change.CreateTable, version: 4, want: insert},
		{name: "cut off", message: insert[:90], tag: change.Insert, version: 4, want: insert[:90]},
		{name: "second relation cut off", message: truncate[:80], tag: change.Truncate, version: 4, want: truncate[:80]},
		{name: "empty", message: "", tag: change.Insert, version: 4, want: ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			got := wire.AppendForVersion([]byte("before "), []byte(tt.message), tt.tag, tt.version)
			require.Equal(t, "before "+tt.want, string(got))
		})
	}
}

// The frames were recorded from the compatible peer, which sends both forms of a relation.
func TestAppendForVersionGivesThePeersOldForm(t *testing.T) {
	t.Parallel()

	file, err := os.Open("testdata/frames.jsonl")
	require.NoError(t, err)
	defer file.Close()

	compared := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var frame struct{ Msg []json.RawMessage }
		require.NoError(t, json.Unmarshal(lines.Bytes(), &frame))
		if len(frame.Msg) != 2 || string(frame.Msg[0]) != `"data"` {
			continue
		}
		var decoded map[string]any
		require.NoError(t, json.Unmarshal(frame.Msg[1], &decoded))
		relation, ok := decoded["relation"].(map[string]any)
		if !ok {
			continue
		}
		columns, identity := relation["keyColumns"], relation["replicaIdentity"]
		delete(relation, "keyColumns")
		delete(relation, "replicaIdentity")
		ours, err := json.Marshal([]any{"data", decoded})
		require.NoError(t, err)

		tag := change.ParseTag(frame.Msg[1])
		var got []json.RawMessage
		require.NoError(t, json.Unmarshal(wire.AppendForVersion(nil, ours, tag, 4), &got))
		var again struct{ Relation map[string]any }
		require.NoError(t, json.Unmarshal(got[1], &again))
		require.Equal(t, columns, again.Relation["keyColumns"])
		require.Equal(t, identity, again.Relation["replicaIdentity"])
		compared++
	}
	require.Positive(t, compared)
}

func FuzzAppendForVersion(f *testing.F) {
	f.Add([]byte(`["data",{"tag":"insert","relation":{"rowKey":{"columns":["id"],"type":"full"}}}]`))
	f.Add([]byte(`["data",{"relations":[{"rowKey":{"columns":[]}},{"keyColumns":1}]}]`))
	f.Fuzz(func(t *testing.T, message []byte) {
		got := wire.AppendForVersion(nil, message, change.Insert, 4)
		if !json.Valid(message) {
			return
		}
		require.True(t, json.Valid(got), "%s", got)
		require.GreaterOrEqual(t, len(got), len(message))
		if !bytes.Contains(message, []byte("rowKey")) {
			require.Equal(t, message, got)
		}
	})
}
