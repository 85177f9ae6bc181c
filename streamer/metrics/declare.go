package metrics

import "github.com/prometheus/client_golang/prometheus"

// Buckets in seconds. Delays of the stream start below a millisecond, those of the
// database at one.
var (
	streamBuckets   = []float64{.00025, .0005, .001, .002, .004, .008, .016, .05, .1, .5, 1, 5, 30}
	databaseBuckets = []float64{.001, .002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 20}
)

// factory makes and registers metrics.
type factory struct{ registry prometheus.Registerer }

func (f factory) counter(pkg, name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: pkg, Name: name, Help: help})
	f.registry.MustRegister(c)
	return c
}

func (f factory) counters(pkg, name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(
		prometheus.CounterOpts{Namespace: namespace, Subsystem: pkg, Name: name, Help: help}, []string{label})
	f.registry.MustRegister(c)
	return c
}

func (f factory) gauge(pkg, name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: pkg, Name: name, Help: help})
	f.registry.MustRegister(g)
	return g
}

func (f factory) gauges(pkg, name, help, label string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Namespace: namespace, Subsystem: pkg, Name: name, Help: help}, []string{label})
	f.registry.MustRegister(g)
	return g
}

func (f factory) seconds(pkg, name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: pkg, Name: name, Help: help, Buckets: buckets,
	})
	f.registry.MustRegister(h)
	return h
}

func (f factory) source(m *Metrics) {
	m.SourceTransactions = f.counter("source", "transactions_total", "Transactions received whole from upstream.")
	m.SourceMessages = f.counter("source", "messages_total", "Messages made of what was received, begin and commit included.")
	m.SourceReceivedBytes = f.counter("source", "received_bytes_total", "Bytes of the replication stream.")
	m.SourceConnections = f.counter("source", "connections_total", "Replication streams started.")
	m.SourceCommitLag = f.seconds("source", "commit_lag_seconds",
		"Time from the upstream's commit, by its clock, to publishing it, by ours.", streamBuckets)
	m.SourceConfirmedLagBytes = f.gauge("source", "confirmed_lag_bytes", "Bytes of WAL received and not yet confirmed upstream.")
	m.undecodable = f.counters("source", "undecodable_values_total",
		"Values that could not be decoded and were sent as null, by table.", "relation")
}

func (f factory) tail(m *Metrics) {
	m.TailBytes = f.gauge("tail", "memory_bytes", "Memory held by the tail, its index included.")
	m.TailBlocks = f.gauge("tail", "blocks", "Blocks held by the tail.")
	m.TailWaits = f.counter("tail", "waits_total", "Times the source had to wait until the store had made room.")
	m.TailWaitSeconds = f.counter("tail", "wait_seconds_total", "Time the source waited until the store had made room.")
	m.TailAborts = f.counter("tail", "aborts_total", "Transactions that were cut off and came again.")
}

func (f factory) changelog(m *Metrics) {
	m.ChangelogBatches = f.counter("changelog", "batches_total", "Database transactions that stored something.")
	m.ChangelogTransactions = f.counter("changelog", "transactions_total", "Upstream transactions stored.")
	m.ChangelogMessages = f.counter("changelog", "messages_total", "Rows stored in the change log.")
	m.ChangelogBytes = f.counter("changelog", "stored_bytes_total", "Bytes of changes stored in the change log.")
	m.ChangelogRetries = f.counter("changelog", "retries_total", "Batches sent again after an error.")
	m.ChangelogHeadLagBytes = f.gauge("changelog", "head_lag_bytes", "Bytes of messages received and not yet stored.")
	m.ChangelogHeadLagSeconds = f.gauge("changelog", "head_lag_seconds", "Age of the oldest message that is not yet stored.")
	m.ChangelogBatchSeconds = f.seconds("changelog", "batch_duration_seconds",
		"Time from sending a batch to its being durable.", databaseBuckets)
	m.ChangelogWaitSeconds = f.counter("changelog", "wait_seconds_total", "Time spent waiting for locks that other processes held.")
	m.ChangelogPages = f.counter("changelog", "pages_total", "Pages read for catch-up.")
	m.ChangelogPageRows = f.counter("changelog", "page_rows_total", "Rows in the pages read for catch-up.")
	m.ChangelogPageSeconds = f.seconds("changelog", "page_duration_seconds",
		"Time to read a page, waiting for a connection included.", databaseBuckets)
	m.ChangelogPurgedRows = f.counter("changelog", "purged_rows_total", "Rows purged from the change log.")
}

func (f factory) server(m *Metrics) {
	m.ServerSubscribers = f.gauges("server", "subscribers", "Connected subscribers, by mode.", "mode")
	m.ServerFrames = f.counter("server", "frames_total", "Frames sent to subscribers.")
	m.ServerBytes = f.counter("server", "sent_bytes_total", "Bytes sent to subscribers, frame headers included.")
	m.ServerAcks = f.counter("server", "acks_total", "Acks received from subscribers.")
	m.ServerCloses = f.counters("server", "closes_total", "Connections that we ended, by how.", "code")
	m.ServerRefusals = f.counters("server", "refusals_total", "Requests that were not served, by why.", "reason")
	m.ServerOversized = f.counter("server", "oversized_messages_total",
		"Times a subscriber met a message larger than it takes.")
	m.ServerViolations = f.counter("server", "violations_total", "Connections ended because the peer broke the protocol.")
	m.ServerFlushSeconds = f.seconds("server", "flush_duration_seconds",
		"Time one write to a subscriber took; long when it does not read.", streamBuckets)
	m.ServerSubscribersMax = f.gauge("server", "subscribers_max", "Limit on connected subscribers; 0 is none.")
}
