package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

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
	p = client.Position(s)
	if err := p.Check(); err != nil {
		return p, false, fmt.Errorf("read the state in %s: %w; it was not written by streamer tail: name another file", f.name, err)
	}
	return p, true, nil
}

// lock makes this process the only one that goes on from the file, until unlock or its
// end. The lock is on a file beside it, since the file itself is replaced; that one stays,
// as whoever waits for it may have it open.
func (f stateFile) lock() (unlock func() error, err error) {
	file, err := os.OpenFile(f.name+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the state: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the state in %s: %w", f.name, err)
		}
		holder, _ := io.ReadAll(io.LimitReader(file, 200)) // a detail for people
		return nil, fmt.Errorf("the state in %s is in use by another streamer tail (%s): give each reader a file of its own",
			f.name, cmp.Or(strings.TrimSpace(string(holder)), "which has only begun"))
	}
	host, _ := os.Hostname() // a detail for people
	err = file.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintf(file, "process %d on %s since %s\n", os.Getpid(), host, time.Now().Format(time.RFC3339))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the state in %s: %w", f.name, err), file.Close())
	}
	return file.Close, nil
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
