package wire

import (
	"fmt"
	"strings"
)

// The workers that a path may name. This process has the last one only.
const (
	syncWorker        = "sync"
	mutateWorker      = "mutate"
	replicationWorker = "replication"
)

// tokenParameter carries a token for those who cannot send a header.
const tokenParameter = "token"

// redacted stands in for a token in texts.
const redacted = "xxxxx"

// maxBase bounds the segment before the path of a request.
const maxBase = 63

// Rules say which requests a server takes. The zero value takes what is usual.
type Rules struct {
	Oldest int // oldest protocol version served; MinVersion if zero
	// Base is the segment that may stand before the path of a request. Without a segment a
	// request is taken in any case; if Base is empty, with any single one.
	Base string
}

// CheckBase says whether a text can be the base of paths: one segment, written alike in
// every URL.
func CheckBase(base string) error {
	switch {
	case base == "" || len(base) > maxBase:
		return fmt.Errorf("%q has not 1 to %d characters", base, maxBase)
	case strings.Trim(base, ".") == "":
		return fmt.Errorf("%q means another place in a URL", base)
	}
	for _, c := range base {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-._~", c) {
			return fmt.Errorf("%q has more than one segment, or characters besides letters, digits, and -._~", base)
		}
	}
	return nil
}

// IsPath says whether a path has the form of a request, of whatever version.
func (r Rules) IsPath(path string) bool {
	t, ok := r.split(path)
	return ok && t.worker == replicationWorker && t.hasNumber() && t.exists()
}

// target is what a path names.
type target struct {
	worker  string
	version string // what follows the v
	action  Action
}

func (t target) hasNumber() bool { return strings.Trim(t.version, "0123456789") == "" }

func (t target) exists() bool { return t.action == Changes || t.action == Snapshot }

// split takes a path of the form [/<base>]/<worker>/v<version>/<action> apart.
func (r Rules) split(path string) (t target, ok bool) {
	segments := strings.Split(path, "/")
	const least = 4 // with the nothing before the first slash
	switch {
	case segments[0] != "":
		return t, false
	case len(segments) == least+1 && segments[1] != "" && (r.Base == "" || segments[1] == r.Base):
		segments = segments[1:]
	case len(segments) != least:
		return t, false
	}
	version, ok := strings.CutPrefix(segments[2], "v")
	if !ok || version == "" || segments[3] == "" {
		return t, false
	}
	return target{worker: segments[1], version: version, action: Action(segments[3])}, true
}

// dispatch finds what a request asks for, or refuses as the compatible peer's dispatcher
// does in a process that has neither sync workers nor a mutator.
func (r Rules) dispatch(path, rawQuery string) (target, error) {
	t, ok := r.split(path)
	if !ok {
		return t, refuse("Invalid URL: %s", shown(path, rawQuery))
	}
	switch t.worker {
	case syncWorker, mutateWorker:
		if !t.hasNumber() {
			return t, refuse("Invalid version: %s", shown(path, rawQuery))
		}
		if t.worker == mutateWorker {
			return t, refuse("Received a mutate request with no mutator.")
		}
		return t, refuse("Received a sync request with no sync workers.")
	case replicationWorker:
	default:
		return t, refuse("Invalid URL: %s", shown(path, rawQuery))
	}
	switch {
	case !t.exists():
		return t, &Close{
			Code:   CloseInternal,
			Reason: `invalid action "` + string(t.action) + `" received in handoff`,
			Delay:  true,
		}
	case !t.hasNumber():
		return t, refuse("invalid path: %s", path)
	}
	return t, nil
}

// Token returns the token that a query carries; empty if there is none.
func Token(rawQuery string) string { return parseQuery(rawQuery)[tokenParameter] }

// shown returns path and query as they may be shown to people: without a token.
func shown(path, rawQuery string) string {
	if rawQuery == "" {
		return path
	}
	pairs := strings.Split(rawQuery, "&")
	for i, pair := range pairs {
		if name, _, _ := strings.Cut(pair, "="); unescape(name) == tokenParameter {
			pairs[i] = tokenParameter + "=" + redacted
		}
	}
	return path + "?" + strings.Join(pairs, "&")
}
