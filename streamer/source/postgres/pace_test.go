package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/stretchr/testify/require"
)

func TestPace(t *testing.T) {
	t.Parallel()
	const every = 500 * time.Millisecond
	for name, c := range map[string]struct{ timeout, silence, heartbeat, tick, want time.Duration }{
		"never given up":        {0, 0, 10 * time.Second, every, 0},
		"never, and a silence":  {0, time.Minute, 10 * time.Second, every, 0},
		"one second":            {time.Second, 0, 250 * time.Millisecond, 125 * time.Millisecond, 10 * time.Second},
		"five seconds":          {5 * time.Second, 0, 1250 * time.Millisecond, every, 10 * time.Second},
		"sixty seconds":         {time.Minute, 0, 10 * time.Second, every, 2 * time.Minute},
		"sixty, and a silence":  {time.Minute, 33 * time.Second, 10 * time.Second, every, 33 * time.Second},
		"very small":            {20 * time.Millisecond, 0, 5 * time.Millisecond, minTick, 10 * time.Second},
		"longer than we'd wait": {time.Hour, 0, 10 * time.Second, every, 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPace(c.timeout, every, c.silence)
			require.Equal(t, c.heartbeat, p.heartbeat)
			require.Equal(t, c.tick, p.tick)
			require.Equal(t, c.want, p.silence)
		})
	}
}

func TestStatusUpdate(t *testing.T) {
	t.Parallel()
	at := time.Date(2000, 1, 1, 0, 0, 1, 2000, time.UTC)
	want := []byte{
		'd', 0, 0, 0, 38, 'r',
		0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2,
		0, 0, 0, 0, 0, 0x0f, 0x42, 0x42, 1,
	}
	require.Equal(t, want, appendStatus(nil, pglogrepl.LSN(1<<32+2), at, true))
	require.Zero(t, appendStatus(nil, 0, at, false)[38])
}

func TestKeepalive(t *testing.T) {
	t.Parallel()
	message := append([]byte{'k', 0, 0, 0, 1, 0, 0, 0, 2}, make([]byte, 9)...)
	k, err := parseKeepalive(message)
	require.NoError(t, err)
	require.Equal(t, keepalive{end: 1<<32 + 2}, k)
	message[17] = 1
	k, err = parseKeepalive(message)
	require.NoError(t, err)
	require.True(t, k.reply)
	for n := range len(message) {
		_, err := parseKeepalive(message[:n])
		require.Error(t, err)
	}
}

func TestUrge(t *testing.T) {
	t.Parallel()
	const gap = 2 * time.Second
	at := time.Unix(1_000_000, 0)
	var u urge
	require.False(t, u.asked(at, gap), "once is nothing")
	require.False(t, u.asked(at.Add(4*time.Second), gap), "nor is twice with a long gap")
	for d := time.Second; d < shutdownGrace; d += time.Second {
		require.False(t, u.asked(at.Add(4*time.Second+d), gap))
	}
	require.True(t, u.asked(at.Add(4*time.Second+shutdownGrace), gap))
}

func TestFiller(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_000_000, 0)

	t.Run("at ease", func(t *testing.T) {
		t.Parallel()
		var f filler
		for i := range 100 {
			f.published(at.Add(time.Duration(i)*time.Millisecond), int64(i), false, i%4 != 0)
			require.False(t, f.nap(0))
		}
	})
	t.Run("backlog", func(t *testing.T) {
		t.Parallel()
		var f filler
		now, commits := at, int64(0)
		publish := func(after time.Duration, n int64) {
			now, commits = now.Add(after), commits+n
			f.published(now, commits, false, false)
		}
		publish(time.Second, 1)
		for range longStreak - 1 {
			publish(100*time.Microsecond, 1)
			require.False(t, f.nap(0))
		}
		publish(100*time.Microsecond, 1)
		require.True(t, f.nap(0))
		require.False(t, f.nap(enoughRead), "a read that brought much needs none")
		f.read = enoughRead
		require.True(t, f.nap(enoughRead+1))
		publish(time.Millisecond, 400)
		require.True(t, f.nap(enoughRead+1), "naps make cycles longer, and are kept up while they bring much")
		publish(time.Millisecond, fewCommits-1)
		require.True(t, f.nap(enoughRead+1), "one poor cycle may be an accident")
		publish(time.Millisecond, fewCommits-1)
		require.False(t, f.nap(enoughRead+1))
	})
	t.Run("backlog of a slow machine", func(t *testing.T) {
		t.Parallel()
		var f filler
		for i := range longStreak {
			require.False(t, f.nap(0))
			f.published(at.Add(time.Duration(i)*time.Millisecond), int64(i), false, true)
		}
		require.True(t, f.nap(0))
	})
	t.Run("large transaction", func(t *testing.T) {
		t.Parallel()
		var f filler
		f.published(at, 0, true, false)
		require.True(t, f.nap(0))
		f.published(at.Add(time.Second), 0, true, false)
		require.True(t, f.nap(0))
		for i := range int64(poorCycles) {
			require.True(t, f.nap(0))
			f.published(at.Add(2*time.Second), 1+i, false, false)
		}
		require.False(t, f.nap(0))
	})
}

func TestPublicationList(t *testing.T) {
	t.Parallel()
	require.Equal(t, `'"a","b c","it''s ""x"""'`, publicationList([]string{"a", "b c", `it's "x"`}))
}
