package main

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stop that hangs, here on a reader that does not read, is ended by the second signal.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	for i := range 2000 {
		s.add(fmt.Sprintf("41%04d", i), 10)
	}
	p := command(t, nil, "tail", "--url", s.url, "--from", "first")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	p.cmd.Stdout = w
	p.start()

	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for writable(t, w) {
		<-tick.C
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.cmd.Wait() // how it ended is looked at below
	}()
	limit := time.After(patience)
	for signals := 0; ; {
		select {
		case <-ended:
			status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, status.Signaled(), "exit code %d", status.ExitStatus())
			require.Equal(t, syscall.SIGTERM, status.Signal())
			require.GreaterOrEqual(t, signals, 2)
			return
		case <-tick.C:
			if p.cmd.Process.Signal(syscall.SIGTERM) == nil {
				signals++
			}
		case <-limit:
			t.Fatal("it lives on")
		}
	}
}

// writable says whether a pipe has room.
func writable(t *testing.T, w *os.File) bool {
	t.Helper()
	raw, err := w.SyscallConn()
	require.NoError(t, err)
	var n int
	var selectErr error
	require.NoError(t, raw.Control(func(fd uintptr) {
		var set syscall.FdSet
		set.Bits[fd/64] |= 1 << (fd % 64)
		n, selectErr = syscall.Select(int(fd)+1, nil, &set, nil, &syscall.Timeval{})
	}))
	require.NoError(t, selectErr)
	return n > 0
}
