package snapshot

import (
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// Compression says how files are compressed.
type Compression string

// The kinds of compression.
const (
	Zstd Compression = "zstd"
	Gzip Compression = "gzip"
	None Compression = "none"
)

// extension is what the names of such files end with.
func (c Compression) extension() (string, error) {
	switch c {
	case Zstd:
		return ".zst", nil
	case Gzip:
		return ".gz", nil
	case None:
		return "", nil
	}
	return "", fmt.Errorf("compression %q is none of %s, %s and %s", string(c), Zstd, Gzip, None)
}

// writer returns what compresses into w. Tables are compressed beside each other, so each
// of them has no helpers.
func (c Compression) writer(w io.Writer) (io.WriteCloser, error) {
	switch c {
	case Zstd:
		return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	case Gzip:
		return gzip.NewWriterLevel(w, gzip.BestSpeed)
	case None:
		return nopCloser{w}, nil
	}
	_, err := c.extension()
	return nil, err
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// reader returns what decompresses r.
func (c Compression) reader(r io.Reader) (io.ReadCloser, error) {
	switch c {
	case Zstd:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case Gzip:
		return gzip.NewReader(r)
	case None:
		return io.NopCloser(r), nil
	}
	_, err := c.extension()
	return nil, err
}
