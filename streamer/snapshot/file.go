package snapshot

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
)

// fileBuffer is what a compressor is given at once, and what the disk is.
const fileBuffer = 256 << 10

// File is the file of one table while it is written. It takes the text of COPY. Its
// methods are for one goroutine, but for Rows and RawBytes.
type File struct {
	folder *Folder
	name   string
	file   *os.File
	sum    hash.Hash
	bytes  int64

	toDisk *bufio.Writer
	packed io.WriteCloser // compresses into toDisk
	raw    *bufio.Writer  // gathers rows for packed

	rows, rawBytes atomic.Int64
}

// Table begins the file of a table. Numbers begin with 1.
func (f *Folder) Table(number int, schema, table string) (*File, error) {
	t := &File{folder: f, name: f.fileName(number, schema, table), sum: sha256.New()}
	var err error
	if t.file, err = os.OpenFile(t.path()+temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode); err != nil {
		return nil, fmt.Errorf("begin a file: %w", err)
	}
	t.toDisk = bufio.NewWriterSize(writerFunc(t.store), fileBuffer)
	if t.packed, err = f.compression.writer(t.toDisk); err != nil {
		return nil, errors.Join(err, t.file.Close())
	}
	t.raw = bufio.NewWriterSize(t.packed, fileBuffer)
	return t, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (t *File) path() string { return filepath.Join(t.folder.dir, t.name) }

// store writes what is compressed.
func (t *File) store(b []byte) (int, error) {
	n, err := t.file.Write(b)
	t.sum.Write(b[:n])
	t.bytes += int64(n)
	return n, err
}

// Write takes some text of COPY. Line ends in it end rows: those in values are escaped.
func (t *File) Write(b []byte) (int, error) {
	n, err := t.raw.Write(b)
	t.rows.Add(int64(bytes.Count(b[:n], []byte{'\n'})))
	t.rawBytes.Add(int64(n))
	return n, err
}

// Rows is the number of rows written so far.
func (t *File) Rows() int64 { return t.rows.Load() }

// RawBytes is their size before compression.
func (t *File) RawBytes() int64 { return t.rawBytes.Load() }

// Finish ends the file, waits until the disk has it, and gives it its name. It completes
// the file's part of table.
func (t *File) Finish(table *Table) error {
	for _, step := range []func() error{t.raw.Flush, t.packed.Close, t.toDisk.Flush, t.file.Sync} {
		if err := step(); err != nil {
			return errors.Join(fmt.Errorf("write %s: %w", t.name, err), t.file.Close())
		}
	}
	if err := t.file.Close(); err != nil {
		return fmt.Errorf("write %s: %w", t.name, err)
	}
	if err := os.Rename(t.path()+temporary, t.path()); err != nil {
		return fmt.Errorf("write %s: %w", t.name, err)
	}
	table.File = t.name
	table.Rows, table.RawBytes, table.Bytes = t.Rows(), t.RawBytes(), t.bytes
	table.SHA256 = hex.EncodeToString(t.sum.Sum(nil))
	return nil
}

// Abandon closes a file that will not be whole. Folder.Discard removes it.
func (t *File) Abandon() { _ = t.file.Close() } // what it says does not matter any more
