package streamer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/streamer"
)

// The streamer that is measured is a process of its own, which is this binary again: so
// its memory and its processor time are known, and subscribers cost it nothing but what
// they would elsewhere.
const streamerVariable = "MILLRACE_TEST_STREAMER"

// streamerSettings is what the process is told.
type streamerSettings struct {
	Upstream, ChangeDB string
	Listen             string
	Delay              time.Duration // of the start, which the first subscriber ends
	Profile            string        // file for a profile of the processor time; none if empty
}

// streamerMain is the whole of that process. It ends with its input.
func streamerMain() {
	if err := runStreamer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runStreamer() error {
	var cfg streamerSettings
	if err := json.Unmarshal([]byte(os.Getenv(streamerVariable)), &cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
		cancel()
	}()
	profile, stop := io.Discard, func() {}
	if cfg.Profile != "" {
		file, err := os.Create(cfg.Profile)
		if err != nil {
			return err
		}
		defer file.Close()
		profile, stop = file, pprof.StopCPUProfile
	}
	return streamer.Run(ctx, streamer.Config{
		UpstreamDB:   cfg.Upstream,
		ChangeDB:     cfg.ChangeDB,
		AppID:        "bench",
		TaskID:       "bench",
		Listen:       cfg.Listen,
		StartupDelay: cfg.Delay,
		Logger:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Started: func(string) {
			if cfg.Profile != "" {
				if err := pprof.StartCPUProfile(profile); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
				context.AfterFunc(ctx, stop)
			}
			fmt.Fprintln(os.Stdout, time.Now().UnixNano())
		},
	})
}

// streamerProcess is a running streamer.
type streamerProcess struct {
	command *exec.Cmd
	stdin   io.Closer
	address string

	began   chan struct{} // closed when the stream begins, or the process has ended
	beganAt time.Time     // zero: it has ended
	once    sync.Once
}

// startProcess starts a streamer. With wait its stream begins with the first subscriber.
func (l *lab) startProcess(name string, wait bool) *streamerProcess {
	l.t.Helper()
	cfg := streamerSettings{Upstream: l.server.TCPURL("up"), ChangeDB: l.server.TCPURL("log"), Listen: unusedAddress(l.t)}
	if wait {
		cfg.Delay = labPatience
	}
	if l.profiles != "" {
		cfg.Profile = filepath.Join(l.profiles, name+".cpu")
	}
	text, err := json.Marshal(cfg)
	require.NoError(l.t, err)
	p := &streamerProcess{
		command: exec.Command(os.Args[0]), //nolint:gosec // this very binary
		address: cfg.Listen, began: make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), streamerVariable+"="+string(text))
	p.command.Stderr = l.t.Output()
	p.stdin, err = p.command.StdinPipe()
	require.NoError(l.t, err)
	stdout, err := p.command.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, p.command.Start())
	l.t.Cleanup(func() { _ = p.end() }) // it has been ended in order before
	go func() {
		defer close(p.began)
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		if at, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64); err == nil {
			p.beganAt = time.Unix(0, at)
		}
	}()
	if !wait {
		p.begins(l.t)
	}
	return p
}

// begins waits until the stream has begun, and returns when that was.
func (p *streamerProcess) begins(t testing.TB) time.Time {
	t.Helper()
	select {
	case <-p.began:
	case <-time.After(labPatience):
		require.FailNow(t, "the streamer does not begin")
	}
	require.NotZero(t, p.beganAt, "the streamer has ended")
	return p.beganAt
}

func (p *streamerProcess) end() (err error) {
	p.once.Do(func() {
		_ = p.stdin.Close()
		<-p.began // all of its output has been read
		err = p.command.Wait()
	})
	return err
}

// stop stops the streamer in order.
func (p *streamerProcess) stop(t testing.TB) {
	t.Helper()
	require.NoError(t, p.end())
}

// memory returns what Linux says about the memory of the process, in bytes: VmHWM is the
// most that was resident, VmRSS what is resident now. 0 elsewhere.
func (p *streamerProcess) memory(t testing.TB, what string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if runtime.GOOS != "linux" {
		return 0
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, what+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	require.FailNow(t, "no such line", what)
	return 0
}

// processorTime returns what a process has used, on Linux, by the scheduler's own count.
func processorTime(pid int) time.Duration {
	var total time.Duration
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if fields := strings.Fields(string(text)); err == nil && len(fields) > 0 {
			n, _ := strconv.ParseInt(fields[0], 10, 64)
			total += time.Duration(n)
		}
	}
	return total
}

// unusedAddress is one that nobody listens on.
func unusedAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

// settled returns the memory that is resident once that no longer grows.
func (p *streamerProcess) settled(t testing.TB) int64 {
	t.Helper()
	last := int64(-1)
	for {
		now := p.memory(t, "VmRSS")
		if now <= last || now == 0 {
			return now
		}
		last = now
		letPass(200 * time.Millisecond)
	}
}

// serverTime is the processor time that the server has used for the streamer that runs.
func (l *lab) serverTime() (total time.Duration) {
	l.t.Helper()
	rows, err := l.log.Query(l.t.Context(), `select pid from pg_stat_activity
		where application_name in ('millrace-source', 'zero-change-streamer')`)
	require.NoError(l.t, err)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	require.NoError(l.t, err)
	for _, pid := range pids {
		total += processorTime(int(pid))
	}
	return total
}
