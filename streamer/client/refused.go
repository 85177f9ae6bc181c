package client

import (
	"fmt"
	"strings"
)

// The types of error messages.
const (
	WrongReplicaVersion = 1
	WatermarkTooOld     = 2
	StreamTooFarBehind  = 3
)

// Refused says that the server will not serve this position, now or later. Whoever gets
// it needs another copy of the data, or another request.
type Refused struct {
	Type     int    // of the error message; 0 if the request itself was refused
	Message  string // of the server
	Position Position
}

// Error returns what the server said and what to do about it.
func (e *Refused) Error() string {
	var what, hint string
	switch e.Type {
	case WrongReplicaVersion:
		what = "wrong replica version"
		hint = "the log was reset, or belongs to another database: start from a new copy of the data"
	case WatermarkTooOld:
		what = "watermark too old"
		hint = "the log no longer goes back that far: start from a newer copy of the data"
	case StreamTooFarBehind:
		what = "too far behind"
		hint = "this subscriber is too slow for the stream: start from a new copy of the data, or raise the server's limit"
	default:
		what = "request refused"
		hint = "check the versions of server and subscriber, and the request"
	}
	return fmt.Sprintf("the change-streamer refused the subscription at watermark %s of replica version %s: %s (error %d): %s; %s",
		e.Position.Watermark, e.Position.ReplicaVersion, what, e.Type, e.Message, hint)
}

// hopeless are the beginnings of close reasons that the same request meets every time.
var hopeless = []string{
	"Error: Cannot service client at protocol",
	"Error: invalid querystring",
	"Error: invalid path",
}

func isHopeless(reason string) bool {
	for _, prefix := range hopeless {
		if strings.HasPrefix(reason, prefix) {
			return true
		}
	}
	return false
}

// violation says that the server broke the protocol.
type violation struct{ err error }

func (e *violation) Error() string { return "the server broke the protocol: " + e.err.Error() }
func (e *violation) Unwrap() error { return e.err }

func violated(format string, args ...any) error {
	return &violation{fmt.Errorf(format, args...)}
}

// callbackError carries what a function of the caller returned through layers that
// wrap.
type callbackError struct{ err error }

func (e *callbackError) Error() string { return e.err.Error() }
func (e *callbackError) Unwrap() error { return e.err }
