package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"millrace/streamer/client"
)

// stateFile keeps a position. It is replaced as a whole: at any moment, and after a
// crash at any moment, it has the old position or the new one.
type stateFile struct{ name string }

// state is what the file holds.
type state struct {
	ReplicaVersion string `json:"replica_version"`
	Watermark      string `json:"watermark"`
}

// read returns the position; found is false if there is no file yet.
func (f stateFile) read() (p client.Position, found bool, err error) {
	content, err := os.ReadFile(f.name)
	if errors.Is(err, fs.ErrNotExist) {
		return p, false, nil
	}
	if err != nil {
		return p, false, fmt.Errorf("read the state: %w", err)
	}
	var s state
	if err := json.Unmarshal(content, &s); err != nil {
		return p, false, fmt.Errorf("read the state in %s: %w; it was not written by streamer tail: name another file", f.name, err)
	}
	if s.ReplicaVersion == "" || s.Watermark == "" {
		return p, false, fmt.Errorf("read the state in %s: it has no replica_version and watermark; it was not written by streamer tail: name another file", f.name)
	}
	return client.Position(s), true, nil
}

// write replaces the position and waits until the disk has it.
func (f stateFile) write(p client.Position) error {
	content, err := json.Marshal(state(p))
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	// Always the same name, so that a crash leaves one such file at most, and the next
	// start takes it over.
	temporary := f.name + ".tmp"
	if err := writeDurably(temporary, append(content, '\n')); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(temporary, f.name); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return f.syncFolder()
}

func writeDurably(name string, content []byte) (err error) {
	file, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(content); err != nil {
		return err
	}
	return file.Sync()
}

// syncFolder makes the new name durable.
func (f stateFile) syncFolder() (err error) {
	folder, err := os.Open(filepath.Dir(f.name))
	if err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if err := folder.Sync(); err != nil {
		return fmt.Errorf("write the state: sync its folder: %w", err)
	}
	return nil
}
