package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Close codes that we send. A close frame without a code is sent for every normal end,
// and everything that mends itself; the peer sees 1005 then.
const (
	ClosePlain    = 0    // no code in the frame
	CloseProtocol = 1002 // the request or an ack was wrong
	CloseTooBig   = 1009 // the next message is larger than the subscriber takes
	CloseInternal = 1011 // a fault of ours
)

// maxReason is the longest reason in bytes: a control frame carries 125, the code two.
const maxReason = 123

// Types of error messages. A subscriber that gets one deletes its replica or stops; so
// they are sent for facts about its own position only [R20].
const (
	TypeWrongReplicaVersion = 1
	TypeWatermarkTooOld     = 2
	TypeStreamTooFarBehind  = 3
)

// Close is an error that says how a connection is to be closed.
type Close struct {
	Code   int    // ClosePlain or a close code
	Reason string // of any length; it is sent cut
	// Delay says that the next attempt would meet the same close, so this one is held
	// back for a while, longer each time [R29].
	Delay bool
}

// Error returns the code and the reason.
func (c *Close) Error() string {
	if c.Code == ClosePlain {
		return "close plainly"
	}
	return fmt.Sprintf("close with %d: %s", c.Code, c.Reason)
}

// ErrorMessage is an error that is told to the subscriber in a message, which is the
// only one of its subscription, or the last.
type ErrorMessage struct {
	Type    int
	Message string
}

// Error returns the type and the message.
func (e *ErrorMessage) Error() string {
	return fmt.Sprintf("error %d: %s", e.Type, e.Message)
}

// Append appends the message to dst: ["error",{"type":N,"message":"…"}].
func (e *ErrorMessage) Append(dst []byte) []byte {
	dst = append(dst, `["error",{"type":`...)
	dst = strconv.AppendInt(dst, int64(e.Type), 10)
	dst = append(dst, `,"message":`...)
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(e.Message) // a string into memory: it cannot err
	dst = append(dst, bytes.TrimSuffix(text.Bytes(), []byte{'\n'})...)
	return append(dst, `}]`...)
}

// WrongReplicaVersion refuses a subscriber whose replica belongs to another log.
func WrongReplicaVersion(current, requested string) *ErrorMessage {
	return &ErrorMessage{
		Type:    TypeWrongReplicaVersion,
		Message: fmt.Sprintf("current replica version is %s (requested %s)", current, requested),
	}
}

// WatermarkTooOld refuses a subscriber whose position the log no longer covers.
func WatermarkTooOld(minimum, requested string) *ErrorMessage {
	return &ErrorMessage{
		Type:    TypeWatermarkTooOld,
		Message: fmt.Sprintf("earliest supported watermark is %s (requested %s)", minimum, requested),
	}
}

// StreamTooFarBehind gives a subscriber up that has not acked anything for too long.
func StreamTooFarBehind(limit, lag time.Duration) *ErrorMessage {
	return &ErrorMessage{
		Type:    TypeStreamTooFarBehind,
		Message: fmt.Sprintf("lagging for over %dms (%dms)", limit.Milliseconds(), lag.Milliseconds()),
	}
}

// TooBig ends a subscription before a message that its subscriber does not take. what
// names the message for people, such as its relation; size is that of the frame's
// payload in bytes.
func TooBig(what string, size, limit int64) *Close {
	return &Close{
		Code:   CloseTooBig,
		Reason: fmt.Sprintf("Error: message of %s has %d bytes, more than %d; raise maxMessageBytes", what, size, limit),
		Delay:  true,
	}
}

// TruncateReason returns the text as it may stand in a close frame: valid UTF-8 of at
// most 123 bytes. A longer one is cut between characters and ends in "...".
func TruncateReason(text string) string {
	const dots = "..."
	if len(text) > 16*maxReason { // only the beginning matters, however long it is
		text = text[:16*maxReason]
	}
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= maxReason {
		return text
	}
	cut := maxReason - len(dots)
	for !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + dots
}
