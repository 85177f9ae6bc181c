package subscriber

import (
	"bytes"
	"encoding/json"

	"millrace/streamer/change"
)

// subject names what a change is about, for the reason of a close. It looks at the
// beginning only: the change may have a hundred megabytes.
func subject(stored []byte) string {
	tag := change.ParseTag(stored).String()
	head := stored[:min(len(stored), 1024)]
	_, relation, ok := bytes.Cut(head, []byte(`"relation":`))
	if !ok {
		return tag
	}
	relation, _, ok = bytes.Cut(relation, []byte(`,"rowKey"`))
	var id struct{ Schema, Name string }
	if !ok || json.Unmarshal(append(bytes.Clone(relation), '}'), &id) != nil {
		return tag
	}
	return tag + " of " + id.Schema + "." + id.Name
}
