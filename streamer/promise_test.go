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
var brokenOnce = map[string][]uint32{
	"a lost commit succeeds after all": {
		10631731, 15206567, 13438908, 9552388, 12092316, 12034392, 10234040, 10920903, 14667913, 11331687, 1188867,
		10002927, 6398654, 6033175, 5704658, 5080270, 5797545, 3319938, 1693146, 8739145, 13969190, 8930601, 13109841,
		2010719, 8000888, 239556, 9760097, 13444376, 1898307, 8873387, 15214414, 16117136, 2858592, 1946923, 9894659,
		3601733, 11509680, 16574439, 16375049, 14057530, 3704654, 11412097, 1511395, 834704, 437942, 13199146,
		15206986, 6025844, 680931, 16606386, 7967561, 12930859, 8070149, 7384289, 15320701, 1073081, 9480982,
		15054662, 10827444, 11775032, 2397783, 15888397, 3230376, 3976586, 6361589, 32613, 8553320, 1887665, 15974790,
		12309131, 16283623, 13890426, 11994279, 8348301, 9704657, 1421050, 10960987, 10423687, 3925928, 14075479,
		739215, 601963, 7490929, 1483687, 4043808, 5915520, 9197922, 12213340, 13578426, 15452137, 8002657, 5304267,
		14256250, 13460440, 13817144, 14216309, 13919412, 11461596, 13157197, 1871295, 12203320, 1301896, 3218007,
		16611232, 12824215, 8423016, 1958020, 172106, 9174728, 4444677, 15256925, 510638, 12893968, 10228451,
		11823220, 7328362, 9010573, 9332782, 5801976, 9955322, 2168918, 7405966, 11935880, 5693991, 10069792, 9136598,
		13537365, 11629, 16222305, 16264291, 6535870, 12137863, 12657379, 1033707, 3125944, 13059443, 16749129,
		3123496, 583245, 3281190, 16181869, 7170637, 9752218, 2151842, 12910215, 12820304, 15898355,
	},
}

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
