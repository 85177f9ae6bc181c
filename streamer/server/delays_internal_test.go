package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDelaysGrowForEachTask(t *testing.T) {
	t.Parallel()

	d := &delays{first: time.Second, last: 10 * time.Second}
	now := time.Unix(1_000_000, 0)
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		now = now.Add(10 * time.Second)
		require.Equal(t, want*time.Second, d.next("a", now))
	}
	require.Equal(t, time.Second, d.next("b", now))
	require.Equal(t, 10*time.Second, d.next("a", now.Add(delayMemory)))
	require.Equal(t, time.Second, d.next("b", now.Add(delayMemory+1)))
}

func TestDelaysRememberABoundedNumberOfTasks(t *testing.T) {
	t.Parallel()

	d := &delays{first: time.Second, last: 10 * time.Second}
	now := time.Unix(1_000_000, 0)
	for i := range 10 * maxDelays {
		require.Equal(t, time.Second, d.next(fmt.Sprint(i), now))
		require.LessOrEqual(t, len(d.tasks), maxDelays)
	}
	d.next("late", now.Add(2*delayMemory))
	require.Len(t, d.tasks, 1)
}
