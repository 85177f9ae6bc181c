package streamer

import (
	"sync"
	"sync/atomic"
	"time"

	"millrace/streamer/snapshot"
	"millrace/streamer/source/postgres"
)

const progressEvery = 200 * time.Millisecond

// progress is how far the copy is. Every table has a weight, since many are of no account.
type progress struct {
	tables []postgres.Table
	files  []atomic.Pointer[snapshot.File]
	done   []atomic.Bool
}

func newProgress(tables *postgres.Snapshot) *progress {
	n := len(tables.Tables)
	return &progress{tables: tables.Tables, files: make([]atomic.Pointer[snapshot.File], n), done: make([]atomic.Bool, n)}
}

// watch tells until the function that it returns is called, and then once more.
func (p *progress) watch(tell func(SnapshotProgress)) (finish func()) {
	if tell == nil {
		return func() {}
	}
	tell(p.now())
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				tell(p.now())
			case <-stop:
				tell(p.now())
				return
			}
		}
	})
	return func() {
		close(stop)
		watching.Wait()
	}
}

func (p *progress) now() SnapshotProgress {
	const perTable, almost = 64 << 10, 0.99
	now := SnapshotProgress{Tables: len(p.tables)}
	var all, ready float64
	for i := range p.tables {
		weight := float64(p.tables[i].Bytes + perTable)
		all += weight
		file := p.files[i].Load()
		if file == nil {
			continue
		}
		rows := file.Rows()
		now.Rows += rows
		now.Bytes += file.RawBytes()
		switch {
		case p.done[i].Load():
			now.TablesDone++
			ready += weight
		case p.tables[i].Rows > 0:
			ready += weight * min(almost, float64(rows)/float64(p.tables[i].Rows))
		}
	}
	if all > 0 {
		now.Share = ready / all
	}
	if now.TablesDone == now.Tables {
		now.Share = 1
	}
	return now
}
