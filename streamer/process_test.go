package streamer_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// builtCommand builds the real program once for a test and its subtests.
func builtCommand(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "streamer")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "millrace/cmd/streamer").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// A child is the real program, running or ended.
type child struct {
	cmd   *exec.Cmd
	log   *logText
	ended chan struct{}
}

// spawn starts the program. extra gets its log, too, and out what it prints; both may be
// nil.
func spawn(path string, extra, out io.Writer, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(path, args...), log: &logText{}, ended: make(chan struct{})}
	c.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "TMPDIR=" + os.TempDir()}
	c.cmd.Stdout, c.cmd.Stderr = out, c.log
	if extra != nil {
		c.cmd.Stderr = io.MultiWriter(c.log, extra)
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait() // its code is looked at
	}()
	return c, nil
}

// spawned starts the program for as long as the test goes on.
func spawned(t *testing.T, path string, args ...string) *child {
	t.Helper()
	return printing(t, path, nil, args...)
}

// printing starts the program for as long as the test goes on; out gets what it prints.
func printing(t *testing.T, path string, out io.Writer, args ...string) *child {
	t.Helper()
	c, err := spawn(path, nil, out, args...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // it may have ended
		<-c.ended
	})
	return c
}

func (c *child) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) } // it may have ended

// code waits for the end and returns the exit code; -1: a signal ended it.
func (c *child) code(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(limit):
		require.FailNow(t, "the program does not end", "after %s; its log:\n%s", limit, c.log)
	}
	return c.cmd.ProcessState.ExitCode()
}

// A keeper starts the program again whenever it ends, as every production does.
type keeper struct {
	path  string
	args  []string
	log   *logText // of all of them
	ended chan struct{}

	mu       sync.Mutex
	now      *child
	stopping bool
	codes    map[int]int // how often they ended with which code
	err      error
}

// keep keeps the program running until the test ends.
func keep(t *testing.T, path string, args ...string) *keeper {
	t.Helper()
	k := &keeper{path: path, args: args, log: &logText{}, ended: make(chan struct{}), codes: map[int]int{}}
	k.next()
	require.NoError(t, k.err)
	go k.run()
	t.Cleanup(func() {
		k.end(syscall.SIGKILL)
		if t.Failed() {
			text := k.log.String()
			t.Logf("the end of the programs' log:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	return k
}

func (k *keeper) next() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopping {
		k.now, k.err = spawn(k.path, k.log, nil, k.args...)
	}
}

func (k *keeper) run() {
	defer close(k.ended)
	for {
		now := k.child()
		<-now.ended
		k.mu.Lock()
		k.codes[now.cmd.ProcessState.ExitCode()]++
		stop := k.stopping
		k.mu.Unlock()
		if stop {
			return
		}
		breathe(20 * time.Millisecond)
		k.next()
		k.mu.Lock()
		stop = k.stopping || k.err != nil
		k.mu.Unlock()
		if stop {
			return
		}
	}
}

func (k *keeper) child() *child {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// end ends the program for good and returns the exit code of the last one.
func (k *keeper) end(s syscall.Signal) int {
	k.mu.Lock()
	k.stopping = true
	now := k.now
	k.mu.Unlock()
	now.signal(s)
	<-now.ended
	<-k.ended
	return now.cmd.ProcessState.ExitCode()
}

// many is how often a fault happens: few times, or as often as the environment says.
func many(t *testing.T, few int) int {
	t.Helper()
	return times(t, killsEnv, few)
}

// times is how often something happens: few times, or as often as a variable says.
func times(t *testing.T, variable string, few int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// waitContext is a context for what must not take longer than these tests wait.
func waitContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), endurance)
}
