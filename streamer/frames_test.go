package streamer_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"millrace/streamer/change"
)

// A frame is one line of a transcript: a message that a subscriber received, or the end
// of its connection.
type frame struct {
	ID    int64
	Msg   json.RawMessage // nil if the connection ended here
	Close *closed
}

type closed struct {
	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

// UnmarshalJSON takes a frame as it is on the wire, a bare message, or a close.
func (f *frame) UnmarshalJSON(text []byte) error {
	if bytes.HasPrefix(text, []byte("[")) {
		f.Msg = slices.Clone(text)
		return nil
	}
	var line struct {
		ID    int64           `json:"id"`
		Msg   json.RawMessage `json:"msg"`
		Close *closed         `json:"close"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	if line.Msg == nil && line.Close == nil {
		return errors.New("neither a message nor a close")
	}
	*f = frame{ID: line.ID, Msg: line.Msg, Close: line.Close}
	return nil
}

// A row is one line of a log's transcript: a row of "changeLog".
type row struct {
	Watermark string          `json:"watermark"`
	Pos       int64           `json:"pos"`
	Precommit *string         `json:"precommit"`
	Change    json.RawMessage `json:"change"`
}

// loadLines decodes every line of a file of JSON lines, compressed if its name says so.
func loadLines[T any](path string) ([]T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	var in io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(file); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
	var out []T
	lines := bufio.NewReader(in)
	for n := 1; ; n++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if text := expand(bytes.TrimSpace(line)); len(text) > 0 {
			var value T
			if err := json.Unmarshal(text, &value); err != nil {
				return nil, fmt.Errorf("read %s: line %d: %w", path, n, err)
			}
			out = append(out, value)
		}
		if err != nil {
			return out, nil
		}
	}
}

var repeated = regexp.MustCompile(`"repeat\('(.)', (\d+)\)"`)

// expand writes long strings out: a file says "repeat('x', 9000)" as the SQL does.
func expand(line []byte) []byte {
	return repeated.ReplaceAllFunc(line, func(match []byte) []byte {
		parts := repeated.FindSubmatch(match)
		n, err := strconv.Atoi(string(parts[2]))
		if err != nil {
			return match
		}
		return slices.Concat([]byte{'"'}, bytes.Repeat(parts[1], n), []byte{'"'})
	})
}

func loadFrames(t testing.TB, path string) []frame {
	t.Helper()
	frames, err := loadLines[frame](path)
	require.NoError(t, err)
	require.NotEmpty(t, frames, path)
	return frames
}

func loadRows(t testing.TB, path string) []row {
	t.Helper()
	rows, err := loadLines[row](path)
	require.NoError(t, err)
	require.NotEmpty(t, rows, path)
	return rows
}

// framesOf makes of stored rows the messages that a subscriber must get, and checks that
// every transaction is whole: positions from 0 without a gap, begin first, commit last,
// the precommit watermark on the commit and nowhere else.
func framesOf(rows []row) ([]frame, error) {
	frames := make([]frame, 0, len(rows))
	next, open := int64(0), ""
	for i, r := range rows {
		var c struct {
			Tag string `json:"tag"`
		}
		if err := json.Unmarshal(r.Change, &c); err != nil {
			return nil, fmt.Errorf("row %d: %w", i, err)
		}
		kind := change.Data
		switch c.Tag {
		case "begin":
			kind = change.Begin
			if open != "" {
				return nil, fmt.Errorf("row %d: %s begins inside of %s", i, r.Watermark, open)
			}
			open, next = r.Watermark, 0
		case "commit":
			kind = change.Commit
		}
		if r.Watermark != open || r.Pos != next {
			return nil, fmt.Errorf("row %d: is %s#%d, expected %s#%d", i, r.Watermark, r.Pos, open, next)
		}
		next++
		if (r.Precommit != nil) != (kind == change.Commit) {
			return nil, fmt.Errorf("row %d: a %q has the wrong precommit", i, c.Tag)
		}
		if kind == change.Commit {
			if open = ""; *r.Precommit != r.Watermark {
				return nil, fmt.Errorf("row %d: precommit %s of a commit at %s", i, *r.Precommit, r.Watermark)
			}
		}
		frames = append(frames, frame{Msg: change.Append(nil, kind, r.Change, r.Watermark)})
	}
	if open != "" {
		return nil, fmt.Errorf("transaction %s has no commit", open)
	}
	return frames, nil
}

// A number is a JSON number in a form that is equal for equal values, and of a type that
// no string is equal to.
type number string

// A projection leaves of messages what the protocol defines: no frame ids, status
// frames, LSNs, xids, OIDs, times and fields beyond the protocol; watermarks are only
// checked to rise and to agree.
type projection struct {
	// doubles compares numbers as a subscriber in JavaScript sees them, not digit by
	// digit.
	doubles bool
}

// exactly is the projection that tests use: the expected files hold all digits.
var exactly = projection{}

type object = map[string]any

// frames projects a whole transcript. Empty transactions may be left out, so they are.
func (p projection) frames(frames []frame) ([]any, error) {
	var out []any
	last, begun := "", ""
	for i, f := range frames {
		if f.Close != nil {
			out = append(out, []any{"close", f.Close.Code})
			continue
		}
		var m []any
		decoder := json.NewDecoder(bytes.NewReader(f.Msg))
		decoder.UseNumber()
		if err := decoder.Decode(&m); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		kind, err := at[string](m, 0)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		switch kind {
		case "status":
			continue
		case "begin":
			begun = watermarkOf(m, "commitWatermark")
		case "commit":
			w := watermarkOf(m, "watermark")
			if w != begun {
				return nil, fmt.Errorf("message %d: commits at %q, began for %q", i, w, begun)
			}
			if w != "" && w <= last {
				return nil, fmt.Errorf("message %d: watermark %q is not past %q", i, w, last)
			}
			last = w
			if n := len(out); n > 0 {
				if before, ok := out[n-1].([]any); ok && before[0] == "begin" {
					out = out[:n-1]
					continue
				}
			}
		}
		projected, err := p.message(kind, m)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		out = append(out, projected)
	}
	return out, nil
}

func watermarkOf(m []any, key string) string {
	if len(m) < 3 {
		return "" // expected files of cases have none
	}
	position, ok := m[2].(object)
	if !ok {
		return ""
	}
	w, ok := position[key].(string)
	if !ok {
		return ""
	}
	return w
}

func at[T any](m []any, i int) (T, error) {
	var none T
	if i >= len(m) {
		return none, fmt.Errorf("has no element %d", i)
	}
	v, ok := m[i].(T)
	if !ok {
		return none, fmt.Errorf("element %d is %v, not a %T", i, m[i], none)
	}
	return v, nil
}

func (p projection) message(kind string, m []any) (_ []any, err error) {
	// What is missing or of another type in a message is a panic of the walk below; the
	// message is named where it is caught.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s is not as the protocol says: %v", kind, r)
		}
	}()
	switch kind {
	case "begin":
		c := m[1].(object)
		format, ok := c["json"]
		if !ok {
			format = "p"
		}
		return []any{"begin", object{"json": format, "skipAck": c["skipAck"] == true}}, nil
	case "commit", "rollback":
		return []any{kind}, nil
	case "data":
		return []any{"data", p.change(m[1].(object))}, nil
	case "error":
		return []any{"error", p.value(m[1].(object)["type"])}, nil
	}
	return p.value(m).([]any), nil
}

func (p projection) change(c object) object {
	tag := c["tag"].(string)
	switch tag {
	case "insert":
		return object{"tag": tag, "relation": relation(c["relation"]), "new": p.value(c["new"].(object))}
	case "update":
		return object{
			"tag": tag, "relation": relation(c["relation"]),
			"key": p.value(c["key"]), "new": p.value(c["new"].(object)),
		}
	case "delete":
		return object{"tag": tag, "relation": relation(c["relation"]), "key": p.value(c["key"].(object))}
	case "truncate":
		var relations []any
		for _, r := range c["relations"].([]any) {
			relations = append(relations, relation(r))
		}
		return object{"tag": tag, "relations": relations}
	case "create-table":
		return object{"tag": tag, "spec": p.table(c["spec"].(object)), "backfill": keys(c["backfill"])}
	case "add-column":
		column := c["column"].(object)
		_, backfill := c["backfill"]
		return object{
			"tag": tag, "table": c["table"], "name": column["name"],
			"spec": p.column(column["spec"]), "backfill": backfill,
		}
	case "update-column":
		was, is := c["old"].(object), c["new"].(object)
		return object{
			"tag": tag, "table": c["table"], "old": was["name"], "new": is["name"],
			"spec": p.column(is["spec"]),
		}
	case "backfill", "backfill-completed":
		return p.backfill(tag, c)
	case "create-index":
		spec := c["spec"].(object)
		return object{"tag": tag, "spec": p.some(spec, "schema", "tableName", "name", "unique", "columns")}
	case "update-table-metadata":
		return object{"tag": tag, "table": c["table"]}
	}
	return p.value(c).(object)
}

// backfill compares rows as objects, in any order: the order of columns is free.
func (p projection) backfill(tag string, c object) object {
	out := object{"tag": tag, "relation": relation(c["relation"]), "columns": sorted(c["columns"])}
	if tag == "backfill" {
		names := append(key(c["relation"].(object)), c["columns"].([]any)...)
		var rows []string
		for _, values := range c["rowValues"].([]any) {
			r := object{}
			for i, v := range values.([]any) {
				r[names[i].(string)] = p.value(v)
			}
			rows = append(rows, fmt.Sprint(r)) // prints maps in the order of their keys
		}
		slices.Sort(rows)
		out["rows"] = rows
	}
	return out
}

func key(r object) []any {
	if rowKey, ok := r["rowKey"].(object); ok {
		return slices.Clone(rowKey["columns"].([]any))
	}
	return slices.Clone(r["keyColumns"].([]any))
}

// relation takes both forms, that of versions 5 and 6 first.
func relation(v any) object {
	r := v.(object)
	var identity any
	if rowKey, ok := r["rowKey"].(object); ok {
		identity = rowKey["type"]
	} else {
		identity = r["replicaIdentity"]
	}
	if identity == nil {
		identity = "default"
	}
	return object{"schema": r["schema"].(string), "name": r["name"].(string), "columns": sorted(key(r)), "type": identity}
}

func (p projection) table(spec object) object {
	columns := object{}
	for name, c := range spec["columns"].(object) {
		columns[name] = p.column(c)
	}
	return object{
		"schema": spec["schema"], "name": spec["name"], "primaryKey": p.value(spec["primaryKey"]),
		"columns": columns,
	}
}

func (p projection) column(v any) object {
	return p.some(v.(object), "pos", "dataType", "notNull", "dflt", "characterMaximumLength", "elemPgTypeClass")
}

// some keeps the named members; one that is missing is as good as null.
func (p projection) some(o object, names ...string) object {
	out := object{}
	for _, name := range names {
		out[name] = p.value(o[name])
	}
	return out
}

func keys(v any) []string {
	o, ok := v.(object)
	if !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(o))
}

func sorted(v any) []string {
	out := make([]string, 0)
	for _, s := range v.([]any) {
		out = append(out, s.(string))
	}
	slices.Sort(out)
	return out
}

func (p projection) value(v any) any {
	switch v := v.(type) {
	case json.Number:
		return p.number(v.String())
	case object:
		out := object{}
		for name, member := range v {
			out[name] = p.value(member)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, element := range v {
			out = append(out, p.value(element))
		}
		return out
	}
	return v
}

func (p projection) number(text string) number {
	if p.doubles {
		f, err := strconv.ParseFloat(text, 64) // past the range it is an infinity
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			panic(err)
		}
		return number(strconv.FormatFloat(f, 'g', -1, 64))
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic(fmt.Sprintf("%q is no number", text))
	}
	if r.Sign() == 0 && strings.HasPrefix(text, "-") {
		return "-0" // which must not be sent
	}
	return number(r.RatString())
}

// differences compares two transcripts and describes where they differ, a few places at
// most.
func (p projection) differences(want, got []frame) (string, error) {
	a, err := p.frames(want)
	if err != nil {
		return "", fmt.Errorf("expected: %w", err)
	}
	b, err := p.frames(got)
	if err != nil {
		return "", fmt.Errorf("got: %w", err)
	}
	const shown = 5
	var out strings.Builder
	num := 0
	for i := range max(len(a), len(b)) {
		var x, y any
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if reflect.DeepEqual(x, y) {
			continue
		}
		if num++; num <= shown {
			fmt.Fprintf(&out, "message %d (-expected +got):\n%s", i, cmp.Diff(x, y))
		}
	}
	if num > 0 {
		fmt.Fprintf(&out, "%d messages expected, %d got, %d differ\n", len(a), len(b), num)
	}
	return out.String(), nil
}

// requireSame fails unless the two transcripts say the same.
func requireSame(t testing.TB, want, got []frame, what string) {
	t.Helper()
	diff, err := exactly.differences(want, got)
	require.NoError(t, err, what)
	require.Empty(t, diff, what)
}
