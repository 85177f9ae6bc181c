package backup

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// rig is a Cleanup, and the log that it purges, in steps.
type rig struct {
	*Cleanup
	limits  Limits
	holders *Holders

	purged  []string
	steps   int
	busy    bool
	err     error
	reports []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{holders: NewHolders()}
	var err error
	r.Cleanup, err = NewCleanup(CleanupConfig{
		Limits:  func(context.Context) (Limits, error) { return r.limits, nil },
		Holders: r.holders,
		Purge: func(_ context.Context, before string) (int64, bool, bool, error) {
			if r.busy || r.err != nil {
				return 0, false, r.busy, r.err
			}
			r.steps++
			if r.steps%3 != 0 {
				return 10, false, false, nil
			}
			r.purged = append(r.purged, before)
			return 1, true, false, nil
		},
		Report: func(_ context.Context, floor, holder string) error {
			r.reports = append(r.reports, floor+" "+holder)
			return nil
		},
		Lost: func(error) bool { return false },
	})
	require.NoError(t, err)
	return r
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	step := func(want ...string) {
		t.Helper()
		r.purged = nil
		require.NoError(t, r.step(t.Context()))
		require.Equal(t, want, r.purged)
	}
	step() // nothing is known
	slow := r.holders.Add("slow", "04")
	other := r.holders.Add("other", "07")
	r.limits = Limits{Soft: "06", Why: "backup"}
	step() // it was seen just now
	step("04")
	step() // not again
	require.Equal(t, []string{"04 slow", "04 slow"}, r.reports)

	slow.Follow(func() string { return "08" })
	step("06")
	require.Equal(t, "06 backup", r.reports[len(r.reports)-1])
	step()

	r.limits.Soft = "09"
	step()
	r.busy = true
	step() // a newcomer holds the lock
	r.busy = false
	step("07")
	other.Forget()
	step("08")

	// What is more than is to be kept goes, whoever needs it.
	r.limits = Limits{Soft: "08", Hard: "0a", Why: "retention"}
	step()
	step("0a")

	r.limits.Hard = "0c"
	step()
	r.err = errors.New("the server is gone")
	require.ErrorIs(t, r.step(t.Context()), r.err)
	r.err = nil
	step("0c") // it is tried again
}

func TestNewCleanup(t *testing.T) {
	t.Parallel()
	_, err := NewCleanup(CleanupConfig{})
	require.ErrorContains(t, err, "required")
}
