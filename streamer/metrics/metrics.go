// Package metrics declares every metric of the streamer.
//
// Names are millrace_<package>_<what>_<unit>. Label values are chosen here or by us,
// never by a peer, and their number is bounded. Whoever counts on a hot path adds up
// first and calls once for a block, a batch or a flush.
package metrics

import (
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	namespace = "millrace"

	// maxRelations bounds the values of a relation label; the next one is otherRelation.
	maxRelations  = 100
	otherRelation = "other"
)

// Metrics holds every metric. All of them may be used from any goroutine.
type Metrics struct {
	// The stream of the source.
	SourceTransactions      prometheus.Counter   // whole transactions received
	SourceMessages          prometheus.Counter   // messages made of them, begin and commit included
	SourceReceivedBytes     prometheus.Counter   // bytes of the replication stream
	SourceConnections       prometheus.Counter   // streams started; the first one included
	SourceCommitLag         prometheus.Histogram // seconds from the upstream's commit to our publishing it
	SourceConfirmedLagBytes prometheus.Gauge     // bytes of WAL received and not yet confirmed upstream

	// The tail in memory.
	TailBytes       prometheus.Gauge   // memory held, index included
	TailBlocks      prometheus.Gauge   // blocks held
	TailWaits       prometheus.Counter // times the source had to wait for room
	TailWaitSeconds prometheus.Counter // how long it waited in all
	TailAborts      prometheus.Counter // transactions that were cut off

	// The change log.
	ChangelogBatches        prometheus.Counter   // database transactions committed
	ChangelogTransactions   prometheus.Counter   // upstream transactions stored
	ChangelogMessages       prometheus.Counter   // rows stored
	ChangelogBytes          prometheus.Counter   // bytes of changes stored
	ChangelogRetries        prometheus.Counter   // batches sent again after an error
	ChangelogHeadLagBytes   prometheus.Gauge     // bytes of messages received and not yet stored
	ChangelogHeadLagSeconds prometheus.Gauge     // age of the oldest of them
	ChangelogBatchSeconds   prometheus.Histogram // from sending a batch to its being durable
	ChangelogWaitSeconds    prometheus.Counter   // time spent waiting for locks of other processes
	ChangelogPages          prometheus.Counter   // pages read for catch-up
	ChangelogPageRows       prometheus.Counter   // rows in them
	ChangelogPageSeconds    prometheus.Histogram // time to read one, waiting for a connection included
	ChangelogPurgedRows     prometheus.Counter   // rows purged

	// The subscribers' connections.
	ServerSubscribers *prometheus.GaugeVec // by mode: serving, backup
	ServerFrames      prometheus.Counter   // frames sent
	ServerBytes       prometheus.Counter   // bytes sent, headers included
	ServerAcks        prometheus.Counter   // acks received
	// ServerCloses counts ended connections by code: plain, error (plainly behind an error
	// message), 1002, 1009, 1011, peer (it closed first) and none (no close frame).
	ServerCloses *prometheus.CounterVec
	// ServerRefusals counts by reason. Before the upgrade: unauthorized, not-ready, unavailable,
	// too-many, stopping, bad-upgrade. After it: bad-request, no-backup, closed, wrong-replica-version,
	// watermark-too-old, too-far-behind, other.
	ServerRefusals       *prometheus.CounterVec
	ServerOversized      prometheus.Counter   // times a subscriber met a message larger than it takes
	ServerViolations     prometheus.Counter   // connections ended because the peer broke the protocol
	ServerFlushSeconds   prometheus.Histogram // time one write to a connection took
	ServerSubscribersMax prometheus.Gauge     // the limit on connections; 0 is none

	// Set through Undecodable only.
	undecodable *prometheus.CounterVec

	mu        sync.Mutex
	relations map[string]string // relation → its label value
}

// New makes all metrics and registers them. It panics if the registry has some of them
// already: two streamers need two registries.
func New(registry prometheus.Registerer) *Metrics {
	f := factory{registry: registry}
	m := &Metrics{relations: map[string]string{}}
	f.source(m)
	f.tail(m)
	f.changelog(m)
	f.server(m)
	return m
}

// Undecodable counts a value of a column that could not be decoded and was sent as null.
// Beyond a number of tables the rest are counted together.
func (m *Metrics) Undecodable(schema, table string) {
	m.mu.Lock()
	name := fmt.Sprintf("%s.%s", schema, table)
	label, known := m.relations[name]
	switch {
	case known:
	case len(m.relations) < maxRelations:
		label = name
		m.relations[name] = label
	default:
		label = otherRelation // not remembered: the map stays bounded as well
	}
	m.mu.Unlock()
	m.undecodable.WithLabelValues(label).Inc()
}
