package wire

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// Action is what a request asks for: the last part of its path.
type Action string

// The actions that exist.
const (
	Changes  Action = "changes"  // the change stream
	Snapshot Action = "snapshot" // a reservation while a replica is restored
)

// The modes of a subscriber.
const (
	Serving = "serving" // it serves clients
	Backup  = "backup"  // its replica is backed up
)

// SnapshotVersionWithoutBounds is the last version of /snapshot whose status does not say
// of what history, and from where on, the backup must be.
const SnapshotVersionWithoutBounds = 3

// BackupsNotConfigured is the close reason of a /snapshot request on a server that has
// no backup to offer.
const BackupsNotConfigured = "Error: backups are not configured"

const (
	pathPrefix = "/replication/v"
	// maxMessageLimit bounds maxMessageBytes: nothing larger is ever stored.
	maxMessageLimit = 1 << 30
	// maxWatermarkBytes is far above what any watermark has: two numbers of 37 digits.
	maxWatermarkBytes = 256
)

// Request is what a subscriber asks for.
type Request struct {
	Version int
	Action  Action
	ID      string // names the subscriber, for logs
	TaskID  string // links /changes to a reservation; may be empty below v4
	Mode    string // Serving or Backup
	// ReplicaVersion names the history that the replica belongs to.
	ReplicaVersion string
	// Watermark is the commit up to which the subscriber has everything. It is opaque: one
	// that is no watermark at all, such as zzzzzzzz, is ahead of or behind all others.
	Watermark string
	// Initial says that Watermark is still the one found when the subscriber's process began.
	Initial bool
	// MaxMessageBytes is the largest payload of a frame that the subscriber takes:
	// MaxFrame, unless it asks for another limit.
	MaxMessageBytes int64
}

// Parse reads a request that a server takes by the usual rules. See Rules.Parse.
func Parse(path, rawQuery string) (Request, error) { return Rules{}.Parse(path, rawQuery) }

// Parse reads a request. The path is as it came, without the query. The error is a *Close
// with the code and the reason that the compatible peer sends; the first thing that is
// wrong counts, in this order: path, version, id, taskID, replicaVersion, watermark, and
// then what they hold.
func (r Rules) Parse(path, rawQuery string) (Request, error) {
	t, err := r.dispatch(path, rawQuery)
	if err != nil {
		return Request{}, err
	}
	oldest := cmp.Or(r.Oldest, MinVersion)
	version, err := strconv.Atoi(t.version)
	if err != nil || version < oldest || version > MaxVersion {
		return Request{}, refuse("Cannot service client at protocol v%s. Supported protocols: [v%d ... v%d]",
			canonical(t.version), oldest, MaxVersion)
	}
	q := parseQuery(rawQuery)
	req := Request{
		Version:         version,
		Action:          t.action,
		ID:              q["id"],
		TaskID:          q["taskID"],
		Mode:            Serving,
		ReplicaVersion:  q["replicaVersion"],
		Watermark:       q["watermark"],
		Initial:         q["initial"] == "true",
		MaxMessageBytes: MaxFrame,
	}
	if q["mode"] == Backup {
		req.Mode = Backup
	}
	if req.Action == Snapshot {
		if req.TaskID == "" {
			return Request{}, refuse("Missing taskID in snapshot request")
		}
		return req, nil
	}
	for _, p := range []struct {
		name, value string
		since       int
	}{
		{"id", req.ID, OldestVersion},
		{"taskID", req.TaskID, taskIDRequiredSince},
		{"replicaVersion", req.ReplicaVersion, OldestVersion},
		{"watermark", req.Watermark, OldestVersion},
	} {
		if p.value == "" && version >= p.since {
			return Request{}, refuse("invalid querystring - missing %s", p.name)
		}
	}
	if !opaque(req.Watermark) {
		return Request{}, refuse("invalid querystring - watermark is not a watermark: %q", req.Watermark)
	}
	if text, ok := q["maxMessageBytes"]; ok {
		req.MaxMessageBytes, err = strconv.ParseInt(text, 10, 64)
		if err != nil || req.MaxMessageBytes < 1 || req.MaxMessageBytes > maxMessageLimit {
			return Request{}, refuse("invalid querystring - maxMessageBytes is not a number from 1 to %d: %q",
				maxMessageLimit, text)
		}
	}
	return req, nil
}

// Path returns the path of the request.
func (r Request) Path() string {
	return fmt.Sprintf("%s%d/%s", pathPrefix, r.Version, r.Action)
}

// Query returns the parameters of the request, escaped, in the order of the compatible
// peer's subscribers.
func (r Request) Query() string {
	var b strings.Builder
	add := func(name, value string) {
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(name + "=" + url.QueryEscape(value))
	}
	add("taskID", r.TaskID)
	if r.Action == Snapshot {
		return b.String()
	}
	add("id", r.ID)
	add("mode", r.Mode)
	add("watermark", r.Watermark)
	add("replicaVersion", r.ReplicaVersion)
	if r.Initial {
		add("initial", "true")
	}
	if r.MaxMessageBytes > 0 && r.MaxMessageBytes != MaxFrame {
		add("maxMessageBytes", strconv.FormatInt(r.MaxMessageBytes, 10))
	}
	return b.String()
}

func refuse(format string, args ...any) *Close {
	return &Close{Code: CloseProtocol, Reason: "Error: " + fmt.Sprintf(format, args...), Delay: true}
}

// canonical returns decimal digits without leading zeros.
func canonical(number string) string {
	if trimmed := strings.TrimLeft(number, "0"); trimmed != "" {
		return trimmed
	}
	return "0"
}

// opaque says whether a watermark can be compared, logged and put into JSON as it is.
func opaque(s string) bool {
	if len(s) > maxWatermarkBytes {
		return false
	}
	for _, c := range s {
		if c == '"' || c == '\\' || !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// parseQuery reads parameters as browsers do: the first of a name counts, and what is
// no valid escape stands for itself.
func parseQuery(raw string) map[string]string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(raw, "&") {
		name, value, _ := strings.Cut(pair, "=")
		name, value = unescape(name), unescape(value)
		if _, known := values[name]; !known {
			values[name] = value
		}
	}
	return values
}

func unescape(s string) string {
	text, err := url.QueryUnescape(s)
	if err != nil {
		text = s
	}
	return strings.ToValidUTF8(text, string(unicode.ReplacementChar))
}
