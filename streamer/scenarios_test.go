package streamer_test

// A scenario is a recorded transcript: what it is called, whether it has tables to set
// up, and what the server refuses of it on purpose.
type scenario struct {
	name    string
	setup   bool
	refused []string // SQLSTATEs
}

// scenarios are played one after the other on one database, in this order: some use the
// tables of those before them.
var scenarios = []scenario{
	{name: "a-basic", setup: true},
	{name: "b-types", setup: true},
	{name: "d-truncate", setup: true},
	{name: "e-bigtx", setup: true},
	{name: "e-small"},
	{name: "h-concurrent", setup: true},
}

// fieldCases are small inputs from the field; each has a database of its own.
var fieldCases = []struct {
	name        string
	publication string
	refused     []string
}{
	{name: "01-truncate-cascade-restart", publication: "p01"},
	{name: "02-toast-unchanged", publication: "p02"},
	{name: "03-json-nul", publication: "p03"},
	{name: "06-type-encodings", publication: "p06"},
	// What has no replica identity can neither be deleted nor updated.
	{name: "12-replica-identity-midstream", publication: "p12", refused: []string{"55000", "55000"}},
}

func scenarioNames() []string {
	names := make([]string, 0, len(scenarios))
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}
