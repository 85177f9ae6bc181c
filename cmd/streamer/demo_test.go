package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leftovers finds the files and processes of a demo from what it said about itself.
type leftovers struct{ folder string }

var socketFolder = regexp.MustCompile(`host=([^&']+)`)

func leftoversOf(t *testing.T, p *program) leftovers {
	t.Helper()
	text := p.stderr.waitFor(t, "the explanation", func(text string) bool { return strings.Contains(text, "^C ends everything") })
	match := socketFolder.FindStringSubmatch(text)
	require.NotNil(t, match, text)
	return leftovers{strings.ReplaceAll(match[1], "%2F", "/")}
}

// processes lists those whose command line names the folder.
func (l leftovers) processes(t *testing.T) (pids []int) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range lines {
		content, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		if strings.Contains(string(content), l.folder) {
			pid, err := strconv.Atoi(strings.Split(name, "/")[2])
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func (l leftovers) requireNone(t *testing.T) {
	t.Helper()
	require.Empty(t, l.processes(t))
	require.NoDirExists(t, l.folder)
}

func requireDemoOutput(t *testing.T, output string) {
	t.Helper()
	kinds := messages(t, output)
	require.Equal(t, "begin", kinds[0])
	for _, kind := range []string{"data", "commit"} {
		require.Contains(t, kinds, kind)
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	users := []string{"the user of the tests"}
	if os.Geteuid() == 0 {
		users = append(users, "nobody")
	}
	for _, name := range users {
		t.Run("as "+name, func(t *testing.T) {
			t.Parallel()
			p := command(t, nil, "demo", "--for", "3s")
			if name == "nobody" {
				runAs(t, p.cmd, name)
			}
			p.start()
			left := leftoversOf(t, p)
			require.NotEmpty(t, left.processes(t))
			require.Equal(t, 0, p.wait(), p.stderr.String())
			requireDemoOutput(t, p.stdout.String())
			require.GreaterOrEqual(t, strings.Count(p.stdout.String(), `["commit"`), 3)
			left.requireNone(t)
		})
	}
}

// runAs makes a command run as another user, who cannot read where the tests are built.
func runAs(t *testing.T, c *exec.Cmd, name string) {
	t.Helper()
	account, err := user.Lookup(name)
	require.NoError(t, err)
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	require.NoError(t, err)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}

	folder, err := os.MkdirTemp("/tmp", "streamer-test-") //nolint:usetesting // t.TempDir is closed to other users
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(folder)) })
	require.NoError(t, os.Chmod(folder, 0o755))
	self, err := os.Open(c.Path)
	require.NoError(t, err)
	defer self.Close()
	program, err := os.OpenFile(filepath.Join(folder, "streamer"), os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(program, self)
	require.NoError(t, err)
	require.NoError(t, program.Close())
	c.Path, c.Dir = program.Name(), "/"
}

func TestDemoStopsOnInterrupt(t *testing.T) {
	t.Parallel()
	// A port that is taken is no reason to give up.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	p := command(t, nil, "demo", "--listen", taken.Addr().String()).start()
	left := leftoversOf(t, p)
	require.Contains(t, p.stderr.String(), "is taken")
	require.NotContains(t, p.stderr.String(), "ws://"+taken.Addr().String())
	p.stdout.waitLines(t, 3)
	p.signal(syscall.SIGINT)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	requireDemoOutput(t, p.stdout.String())
	left.requireNone(t)
}

// Whether a person presses ^C or somebody ends make alone: everything ends, in order.
func TestMakeDemoStops(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		signal syscall.Signal
		group  bool // a terminal signals make and what it runs
	}{
		{"interrupt from a terminal", syscall.SIGINT, true},
		{"termination of make", syscall.SIGTERM, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			self, err := os.Executable()
			require.NoError(t, err)
			folder := t.TempDir()
			require.NoError(t, os.Symlink(self, filepath.Join(folder, "streamer")))
			p := command(t, []string{"GO=true"}) // it is built already
			makePath, err := exec.LookPath("make")
			require.NoError(t, err)
			p.cmd.Path = makePath
			p.cmd.Args = []string{"make", "-C", filepath.Join("..", ".."), "demo", "BIN=" + folder}
			p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			p.start()
			left := leftoversOf(t, p)
			require.Contains(t, p.stderr.String(), filepath.Join(folder, "streamer")+" tail --url")
			p.stdout.waitFor(t, "a commit", func(text string) bool { return strings.Contains(text, `["commit"`) })
			target := p.cmd.Process.Pid
			if tt.group {
				target = -target
			}
			require.NoError(t, syscall.Kill(target, tt.signal))
			require.Equal(t, -1, p.wait(), p.stderr.String())
			// Make ends by the signal, too, as a shell wants it, and when the demo has ended.
			require.Equal(t, tt.signal, p.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
			left.requireNone(t)
			require.NotContains(t, p.stderr.String(), "Error")
		})
	}
}

func TestDemoStopsWhileItStarts(t *testing.T) {
	t.Parallel()
	p := command(t, nil, "demo").start()
	p.stderr.waitFor(t, "the first words", func(text string) bool { return strings.Contains(text, "starting") })
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.Empty(t, p.stdout.String())
}

func TestDemoWhenItsReaderGoes(t *testing.T) {
	t.Parallel()
	p := command(t, nil, "demo")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout = w
	p.start()
	require.NoError(t, w.Close())
	left := leftoversOf(t, p)
	_, err = io.ReadFull(r, make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, 0, p.wait(), p.stderr.String())
	left.requireNone(t)
}

// Nobody is left to clean up, but PostgreSQL must not live on.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	p := command(t, nil, "demo").start()
	left := leftoversOf(t, p)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(left.folder)) })
	postmaster, err := os.ReadFile(filepath.Join(left.folder, "data", "postmaster.pid"))
	require.NoError(t, err)
	pid, _, _ := strings.Cut(string(postmaster), "\n")
	number, err := strconv.Atoi(pid)
	require.NoError(t, err)
	require.True(t, slices.Contains(left.processes(t), number))
	p.signal(syscall.SIGKILL)
	require.Equal(t, -1, p.wait())

	limit := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for len(left.processes(t)) > 0 {
		select {
		case <-look.C:
		case <-limit:
			t.Fatalf("processes of the demo live on: %v", left.processes(t))
		}
	}
}
