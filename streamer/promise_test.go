package streamer_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// stepsEnv asks for a longer hunt: so many steps instead of the few that CI makes.
const stepsEnv = "MILLRACE_STEPS"

func steps(t testing.TB, few int) int {
	text := os.Getenv(stepsEnv)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, stepsEnv)
	return n
}

// TestPromiseHolds lets schedules of rapid's making refute the first promise, and makes
// them small if they do.
func TestPromiseHolds(t *testing.T) {
	t.Parallel()
	total := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		choices := rapid.SliceOfN(rapid.Uint32(), 1500, 2500).Draw(t, "choices")
		w, err := runWorld(choices)
		add(total, w)
		if err != nil {
			t.Fatalf("%v\n%s", err, list(choices[:min(w.at, len(choices))]))
		}
	})
	report(t, total)
}

// TestPromiseHoldsForLong runs through random schedules until it has made enough steps.
func TestPromiseHoldsForLong(t *testing.T) {
	t.Parallel()
	total := map[string]int{}
	seed := uint64(1)
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	for n := steps(t, 60_000); total["steps"] < n; seed++ {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a schedule is no secret
		choices := randomChoices(r, 200+r.IntN(4000))
		w, err := runWorld(choices)
		add(total, w)
		if err != nil {
			small := shrink(choices[:min(w.at, len(choices))])
			_, smallest := runWorld(small)
			t.Fatalf("seed %d: %v\nin short: %v\n%s", seed, err, smallest, list(small))
		}
	}
	report(t, total)
}

// TestPromiseHeldOnce repeats the schedules that once broke the promise.
func TestPromiseHeldOnce(t *testing.T) {
	t.Parallel()
	for name, choices := range brokenOnce {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := runWorld(choices)
			require.NoError(t, err)
		})
	}
}

// brokenOnce holds schedules that broke the promise, by what was wrong.
var brokenOnce = map[string][]uint32{}

// shrink leaves out of a schedule what it does not need to fail.
func shrink(choices []uint32) []uint32 {
	for changed := true; changed; {
		changed = false
		for size := max(1, len(choices)/2); size > 0; size /= 2 {
			for i := 0; i+size <= len(choices); {
				fewer := slices.Concat(choices[:i], choices[i+size:])
				if _, err := runWorld(fewer); err != nil {
					choices, changed = fewer, true
				} else {
					i += size
				}
			}
		}
	}
	return choices
}

func list(choices []uint32) string {
	text := make([]string, len(choices))
	for i, c := range choices {
		text[i] = fmt.Sprint(c)
	}
	return "{" + strings.Join(text, ", ") + "}"
}

func add(total map[string]int, w *world) {
	total["runs"]++
	for k, n := range w.counts {
		total[k] += n
	}
	total["transactions received"] += w.check.transactions
	total["rollbacks received"] += w.check.rollbacks
	total["stored as they arrived"] += w.log.copied
}

func report(t testing.TB, total map[string]int) {
	for _, k := range slices.Sorted(maps.Keys(total)) {
		t.Logf("%8d %s", total[k], k)
	}
	// A run in which nothing happens proves nothing.
	for _, k := range []string{"commit", "break", "store fails", "rollbacks received", "page", "stale", "stored as they arrived", "restarted stream"} {
		require.Positive(t, total[k], k)
	}
}
