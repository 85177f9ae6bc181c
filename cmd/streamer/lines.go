package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"

	"millrace/streamer/client"
)

// lineBuffer is a few hundred usual messages.
const lineBuffer = 64 << 10

// errReaderGone says that whoever read our output wants no more of it.
var errReaderGone = errors.New("the reader of standard output is gone")

// lineWriter writes messages, one a line.
type lineWriter struct{ w *bufio.Writer }

func newLineWriter(w io.Writer) *lineWriter {
	return &lineWriter{bufio.NewWriterSize(w, lineBuffer)}
}

// handle writes the very bytes of a message; a status is no message of the stream.
func (l *lineWriter) handle(_ context.Context, m client.Message) error {
	if m.Kind == client.Status {
		return nil
	}
	if bytes.IndexByte(m.Bytes, '\n') >= 0 {
		// JSON may be broken into lines between its parts, but a line is a message here.
		var line bytes.Buffer
		if err := json.Compact(&line, m.Bytes); err != nil {
			return fmt.Errorf("write a message that is not JSON: %w", err)
		}
		m.Bytes = line.Bytes()
	}
	if _, err := l.w.Write(m.Bytes); err != nil {
		return explainWrite(err)
	}
	return explainWrite(l.w.WriteByte('\n'))
}

// flush hands everything over to the reader.
func (l *lineWriter) flush() error { return explainWrite(l.w.Flush()) }

func explainWrite(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EPIPE):
		return errReaderGone
	}
	return fmt.Errorf("write to standard output: %w", err)
}
