package snapshot

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
)

// Reader reads a folder that is whole.
type Reader struct {
	dir      string
	manifest *Manifest
}

// Open reads the manifest of a folder and looks whether its files are there.
func Open(dir string) (*Reader, error) {
	r := &Reader{dir: dir}
	var err error
	if r.manifest, err = readManifest(dir); err != nil {
		return nil, fmt.Errorf("read the snapshot in %s: %w", dir, err)
	}
	for i := range r.manifest.Tables {
		t := &r.manifest.Tables[i]
		info, err := os.Stat(filepath.Join(dir, t.File))
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the snapshot in %s: %w: %w", dir, ErrDamaged, err)
		case info.Size() != t.Bytes:
			return nil, fmt.Errorf("read the snapshot in %s: %w: %s has %d bytes instead of %d", dir, ErrDamaged, t.File, info.Size(), t.Bytes)
		}
	}
	return r, nil
}

// Manifest says what is in the folder. It must not be changed.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Verify reads every file and compares it with its digest.
func (r *Reader) Verify(ctx context.Context) error {
	buf := make([]byte, fileBuffer)
	for i := range r.manifest.Tables {
		t := &r.manifest.Tables[i]
		if err := r.verify(ctx, t, buf); err != nil {
			return fmt.Errorf("read the snapshot in %s: %w", r.dir, err)
		}
	}
	return nil
}

func (r *Reader) verify(ctx context.Context, t *Table, buf []byte) error {
	file, err := os.Open(filepath.Join(r.dir, t.File))
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, err := file.Read(buf)
		sum.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return t.compare(sum)
		}
		if err != nil {
			return err
		}
	}
}

func (t *Table) compare(sum hash.Hash) error {
	if got := hex.EncodeToString(sum.Sum(nil)); got != t.SHA256 {
		return fmt.Errorf("%w: %s has the digest %s instead of %s", ErrDamaged, t.File, got, t.SHA256)
	}
	return nil
}

// lines calls each with every line of a table's file, without its end, and compares what
// it has read with the manifest. A line is valid only during the call.
func (r *Reader) lines(t *Table, each func(line []byte) error) (err error) {
	file, err := os.Open(filepath.Join(r.dir, t.File))
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	stored := io.TeeReader(bufio.NewReaderSize(file, fileBuffer), sum)
	unpacked, err := r.manifest.Compression.reader(stored)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrDamaged, t.File, err)
	}
	defer func() { err = errors.Join(err, unpacked.Close()) }()
	var rows int64
	lines := bufio.NewReaderSize(unpacked, fileBuffer)
	for {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, t.File, err)
		}
		rows++
		if err := each(line); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, stored); err != nil { // what the decompressor left
		return err
	}
	if rows != t.Rows {
		return fmt.Errorf("%w: %s has %d rows instead of %d", ErrDamaged, t.File, rows, t.Rows)
	}
	return t.compare(sum)
}

// readLine returns the next line without its end.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) { // a long one
		long := append([]byte(nil), line...)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = r.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	return line[:len(line)-1], nil
}
