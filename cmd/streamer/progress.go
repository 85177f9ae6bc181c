package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"millrace/streamer"
)

const (
	barWidth  = 24
	clearRest = "\x1b[K" // of the line, for a terminal
)

// progressBar is one line of a terminal that is written over and over.
type progressBar struct {
	w     io.Writer
	began time.Time
}

// show writes the line anew. The cursor stays at its beginning, so that whatever else is
// written, a warning for example, takes its place.
func (b *progressBar) show(p streamer.SnapshotProgress) {
	if b.began.IsZero() {
		b.began = time.Now()
	}
	full := int(p.Share * barWidth)
	line := fmt.Sprintf("[%s%s] %3d %%  %d of %d tables  %d rows  %s  %s",
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), int(100*p.Share),
		p.TablesDone, p.Tables, p.Rows, byteSize(p.Bytes), time.Since(b.began).Round(time.Second))
	explain(b.w, "%s%s\r", line, clearRest)
}

// clear takes the line away.
func (b *progressBar) clear() {
	if !b.began.IsZero() {
		explain(b.w, clearRest)
	}
}

// byteSize is a size for people.
func byteSize(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	size, unit := float64(n), 0
	for size >= 1000 && unit < len(units)-1 {
		size, unit = size/1000, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}
