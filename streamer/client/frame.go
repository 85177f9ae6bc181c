package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// Kind says what a message does.
type Kind uint8

// The kinds of messages. A rollback is sent by a server, or made up when a connection
// is lost inside a transaction.
const (
	Status Kind = iota
	Begin
	Data
	Commit
	Rollback

	refusal // never given to a handler
)

// Message is one message of the stream.
type Message struct {
	// Bytes is the message as the server sent it, for example ["commit",C,{…}]. It is
	// valid only during the call of the handler.
	Bytes []byte
	Kind  Kind
	// Watermark is that of the transaction the message belongs to; empty for a status.
	Watermark string
}

// errShape says that a text does not have the exact form of the protocol.
var errShape = errors.New("not the exact form")

const (
	frameOpen   = `{"id":`
	frameMiddle = `,"msg":`

	beginOpen   = `["begin",{`
	beginMiddle = `,{"commitWatermark":"`
	dataOpen    = `["data",{`
	dataClose   = `}]`
	commitOpen  = `["commit",{`
	commitMid   = `,{"watermark":"`
	metaClose   = `"}]`
)

// cutFrame takes {"id":N,"msg":M} apart. M is a slice of frame.
func cutFrame(frame []byte) (id uint64, msg []byte, err error) {
	rest, ok := bytes.CutPrefix(frame, []byte(frameOpen))
	if !ok {
		return 0, nil, errShape
	}
	const maxDigits = 19 // below 2^63
	n := 0
	for n < len(rest) && n < maxDigits && rest[n]-'0' <= 9 {
		id = id*10 + uint64(rest[n]-'0')
		n++
	}
	if n == 0 {
		return 0, nil, errShape
	}
	rest, ok = bytes.CutPrefix(rest[n:], []byte(frameMiddle))
	if !ok || len(rest) < len(`["",{}]}`) || rest[0] != '[' || string(rest[len(rest)-2:]) != `]}` {
		return 0, nil, errShape
	}
	return id, rest[:len(rest)-1], nil
}

// parseFrame is cutFrame for every JSON text that means the same: blanks, another order
// of keys, unknown keys. msg is compact.
func parseFrame(frame []byte) (id uint64, msg []byte, err error) {
	var f struct {
		ID  *uint64         `json:"id"`
		Msg json.RawMessage `json:"msg"`
	}
	if err := json.Unmarshal(frame, &f); err != nil {
		return 0, nil, fmt.Errorf("frame %s: %w", excerpt(frame), err)
	}
	if f.ID == nil || len(f.Msg) == 0 {
		return 0, nil, fmt.Errorf("frame %s: id and msg are required", excerpt(frame))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, f.Msg); err != nil {
		return 0, nil, fmt.Errorf("frame %s: %w", excerpt(frame), err)
	}
	return *f.ID, compact.Bytes(), nil
}

// classify returns the kind and the watermark of a message in canonical form; errShape
// for any other, and for messages that are rare.
func classify(msg []byte) (Kind, []byte, error) {
	switch {
	case bytes.HasPrefix(msg, []byte(dataOpen)) && bytes.HasSuffix(msg, []byte(dataClose)):
		return Data, nil, nil
	case bytes.HasPrefix(msg, []byte(beginOpen)):
		w, err := lastWatermark(msg, beginMiddle)
		return Begin, w, err
	case bytes.HasPrefix(msg, []byte(commitOpen)):
		w, err := lastWatermark(msg, commitMid)
		return Commit, w, err
	}
	return 0, nil, errShape
}

func lastWatermark(msg []byte, middle string) ([]byte, error) {
	rest, ok := bytes.CutSuffix(msg, []byte(metaClose))
	if !ok {
		return nil, errShape
	}
	i := bytes.LastIndex(rest, []byte(middle))
	if i < 0 {
		return nil, errShape
	}
	w := rest[i+len(middle):]
	if len(w) == 0 || bytes.ContainsAny(w, `"\`) {
		return nil, errShape
	}
	return w, nil
}

// parsed is a message taken apart by the JSON library.
type parsed struct {
	kind      Kind
	watermark []byte
	errType   int
	errText   string
}

// parseMessage takes a message apart whatever its form.
func parseMessage(msg []byte) (parsed, error) {
	var parts []json.RawMessage
	var name string
	if err := json.Unmarshal(msg, &parts); err != nil {
		return parsed{}, fmt.Errorf("message %s: %w", excerpt(msg), err)
	}
	if len(parts) < 2 || json.Unmarshal(parts[0], &name) != nil {
		return parsed{}, fmt.Errorf("message %s: want an array that begins with a type and a change", excerpt(msg))
	}
	var meta struct {
		CommitWatermark string `json:"commitWatermark"`
		Watermark       string `json:"watermark"`
	}
	if len(parts) > 2 {
		if err := json.Unmarshal(parts[2], &meta); err != nil {
			return parsed{}, fmt.Errorf("message %s: %w", excerpt(msg), err)
		}
	}
	p := parsed{}
	switch name {
	case "status":
		p.kind = Status
	case "begin":
		p.kind, p.watermark = Begin, []byte(meta.CommitWatermark)
	case "data":
		p.kind = Data
	case "commit":
		p.kind, p.watermark = Commit, []byte(meta.Watermark)
	case "rollback":
		p.kind = Rollback
	case "error":
		var e struct {
			Type    int    `json:"type"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(parts[1], &e); err != nil {
			return parsed{}, fmt.Errorf("message %s: %w", excerpt(msg), err)
		}
		p.kind, p.errType, p.errText = refusal, e.Type, e.Message
	default:
		return parsed{}, fmt.Errorf("message %s: unknown type %q", excerpt(msg), name)
	}
	if (p.kind == Begin || p.kind == Commit) && len(p.watermark) == 0 {
		return parsed{}, fmt.Errorf("message %s: no watermark", excerpt(msg))
	}
	return p, nil
}

// excerpt shortens a text for an error: what the rows hold is not for logs.
func excerpt(text []byte) string {
	const limit = 40
	if len(text) > limit {
		return fmt.Sprintf("%q…", text[:limit])
	}
	return fmt.Sprintf("%q", text)
}
