package change

import (
	"bytes"
	"encoding/json"
)

// Tag names what a data message does. Only the tags that some rule asks for have a
// value of their own.
type Tag uint8

// The tags of data messages, in the order of the protocol's table. Other is a tag this
// version does not know: it is passed through.
const (
	Other Tag = iota
	Insert
	Update
	Delete
	Truncate
	Backfill
	CreateTable
	RenameTable
	UpdateTableMetadata
	AddColumn
	UpdateColumn
	DropColumn
	DropTable
	CreateIndex
	DropIndex
	BackfillCompleted
)

var tagNames = [...]string{
	Other:               "",
	Insert:              "insert",
	Update:              "update",
	Delete:              "delete",
	Truncate:            "truncate",
	Backfill:            "backfill",
	CreateTable:         "create-table",
	RenameTable:         "rename-table",
	UpdateTableMetadata: "update-table-metadata",
	AddColumn:           "add-column",
	UpdateColumn:        "update-column",
	DropColumn:          "drop-column",
	DropTable:           "drop-table",
	CreateIndex:         "create-index",
	DropIndex:           "drop-index",
	BackfillCompleted:   "backfill-completed",
}

var tagsByName = func() map[string]Tag {
	m := make(map[string]Tag, len(tagNames))
	for t, name := range tagNames {
		if name != "" {
			m[name] = Tag(t)
		}
	}
	return m
}()

// String returns the tag as it stands in a message.
func (t Tag) String() string {
	if int(t) < len(tagNames) && tagNames[t] != "" {
		return tagNames[t]
	}
	return "other"
}

// ParseTag returns the tag of a change. Every writer known puts it first; where it does
// not stand first the change is parsed.
func ParseTag(change []byte) Tag {
	if rest, ok := bytes.CutPrefix(change, []byte(`{"tag":"`)); ok {
		if i := bytes.IndexByte(rest, '"'); i >= 0 {
			return tagsByName[string(rest[:i])]
		}
	}
	var c struct {
		Tag string `json:"tag"`
	}
	if json.Unmarshal(change, &c) != nil {
		return Other
	}
	return tagsByName[c.Tag]
}
