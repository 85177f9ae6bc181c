package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const rollbackLine = `["rollback",{"tag":"rollback"}]` + "\n"

func readState(t *testing.T, name string) state {
	t.Helper()
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	var s state
	require.NoError(t, json.Unmarshal(content, &s))
	return s
}

func TestTailPrintsTheVeryBytes(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	want := s.add("121", 2)
	want += s.add("122", 0)
	p := command(t, nil, "tail", "--url", s.url, "--from", "first").start()
	p.stdout.waitLines(t, 6)
	want += s.add("123", 1)
	p.stdout.waitLines(t, 9)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.Equal(t, want, p.stdout.String())
	require.Equal(t, []string{"120"}, s.asked())
}

func TestTailBeginsAtTheHead(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	s.add("121", 2)
	p := command(t, nil, "tail", "--url", s.url, "--log-level", "debug").start()
	p.stderr.waitFor(t, "the connection", func(text string) bool { return strings.Contains(text, `"connected"`) })
	want := s.add("122", 1)
	p.stdout.waitLines(t, 3)
	p.signal(syscall.SIGINT)
	require.Equal(t, 0, p.wait())
	require.Equal(t, want, p.stdout.String())
}

func TestTailClosesWhatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	first, second := s.add("121", 1), s.add("122", 2)
	s.cutBefore(6) // the transaction 101, and two messages of 102
	p := command(t, nil, "tail", "--url", s.url, "--from", "first").start()
	got := p.stdout.waitLines(t, 3+2+1+4)
	lines := strings.SplitAfter(second, "\n")
	require.Equal(t, first+lines[0]+lines[1]+rollbackLine+second, got)
	require.Equal(t, []string{"120", "121"}, s.asked())
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

func TestTailGoesOnFromItsState(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	file := filepath.Join(t.TempDir(), "state")
	first := s.add("121", 1)

	p := command(t, nil, "tail", "--url", s.url, "--from", "first", "--state", file).start()
	p.stdout.waitLines(t, 3)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
	require.Equal(t, first, p.stdout.String())
	require.Equal(t, state{ReplicaVersion: "120", Watermark: "121"}, readState(t, file))

	// What a crash leaves of a new state is no state.
	require.NoError(t, os.WriteFile(file+".tmp", []byte(`{"replica_ver`), 0o600))
	second := s.add("122", 1)
	p = command(t, nil, "tail", "--url", s.url, "--from", "first", "--state", file).start()
	p.stdout.waitLines(t, 3)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
	require.Equal(t, second, p.stdout.String())
	require.Equal(t, "122", readState(t, file).Watermark)
}

// The start is kept before anything comes, or what comes while nobody listens were lost.
func TestTailKeepsItsStart(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	s.add("121", 1)
	file := filepath.Join(t.TempDir(), "state")
	p := command(t, nil, "tail", "--url", s.url, "--state", file, "--log-level", "debug").start()
	p.stderr.waitFor(t, "the connection", func(text string) bool { return strings.Contains(text, `"connected"`) })
	p.signal(syscall.SIGKILL)
	require.Equal(t, -1, p.wait())
	want := s.add("122", 1)
	p = command(t, nil, "tail", "--url", s.url, "--state", file).start()
	require.Equal(t, want, p.stdout.waitLines(t, 3))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

// However often it is killed, the output has everything, and the state is never ahead of
// the output.
func TestTailSurvivesKills(t *testing.T) {
	t.Parallel()
	const kills, batch = 8, 200
	s := newStream(t, true)
	file := filepath.Join(t.TempDir(), "state")
	output := ""
	n := 0
	for kill := range kills + 1 {
		for range batch {
			n++
			s.add(fmt.Sprintf("51%05d", n), n%4)
		}
		p := command(t, nil, "tail", "--url", s.url, "--from", "first", "--state", file).start()
		if kill < kills {
			p.stdout.waitFor(t, "some output", func(text string) bool { return len(text) > 1000*(kill+1) })
			p.signal(syscall.SIGKILL)
			require.Equal(t, -1, p.wait())
		} else {
			p.stdout.waitFor(t, "the end", func(text string) bool { return strings.Contains(text, fmt.Sprintf(`{"watermark":"51%05d"}`, n)) })
			p.signal(syscall.SIGTERM)
			require.Equal(t, 0, p.wait(), p.stderr.String())
		}
		text := p.stdout.String()
		// A kill may cut the last line, and the last transaction.
		text = text[:strings.LastIndexByte(text, '\n')+1]
		output += text
		require.LessOrEqual(t, readState(t, file).Watermark, lastCommit(output))
	}
	next := 1
	for line := range strings.Lines(output) {
		var w int
		if _, err := fmt.Sscanf(line, `["commit",{"tag":"commit"},{"watermark":"51%05d"}]`, &w); err == nil {
			require.LessOrEqual(t, w, next, "a gap before %q", line)
			next = max(next, w+1)
		}
	}
	require.Equal(t, n+1, next)
	require.Equal(t, fmt.Sprintf("51%05d", n), readState(t, file).Watermark)
}

func lastCommit(output string) string {
	const mark = `["commit",{"tag":"commit"},{"watermark":"`
	i := strings.LastIndex(output, mark)
	if i < 0 {
		return replicaVersion
	}
	w, _, _ := strings.Cut(output[i+len(mark):], `"`)
	return w
}

func TestTailWithAStateOfAnotherHistory(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, []byte(`{"replica_version":"110","watermark":"115"}`), 0o600))

	code, stdout, stderr := invoke(t, nil, "tail", "--url", s.url, "--state", file)
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "wrong replica version")
	require.Contains(t, stderr, "current replica version is 120 (requested 110)")
	require.Contains(t, stderr, "remove the state file "+file)

	code, _, stderr = invoke(t, nil, "tail", "--url", s.url, "--state", file, "--replica-version", "120")
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "belongs to replica version 110, not to 120")
}

func TestTailWithAStateThatIsNone(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	for name, content := range map[string]string{
		"not JSON": "hello", "empty": "", "other JSON": "{}", "half": `{"replica_version":"120"}`,
		"no watermark": `{"replica_version":"120","watermark":"zzzzzzzz"}`, "a word": `{"replica_version":"120","watermark":"head"}`,
		"no replica version": `{"replica_version":"100","watermark":"121"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "state")
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			code, _, stderr := invoke(t, nil, "tail", "--url", s.url, "--state", file)
			require.Equal(t, exitFailure, code)
			require.Contains(t, stderr, "was not written by streamer tail")
			kept, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, content, string(kept))
		})
	}
}

// Two readers of one state would each skip what the other one has.
func TestTailWithAStateInUse(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	first := s.add("121", 1)
	file := filepath.Join(t.TempDir(), "state")
	p := command(t, nil, "tail", "--url", s.url, "--from", "first", "--state", file).start()
	require.Equal(t, first, p.stdout.waitLines(t, 3))

	code, stdout, stderr := invoke(t, nil, "tail", "--url", s.url, "--state", file)
	require.Equal(t, exitFailure, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, fmt.Sprintf("the state in %s is in use by another streamer tail (process %d on ", file, p.cmd.Process.Pid))
	require.Contains(t, stderr, "give each reader a file of its own")

	p.signal(syscall.SIGKILL) // a lock does not outlive its process
	require.Equal(t, -1, p.wait())
	second := s.add("122", 1)
	p = command(t, nil, "tail", "--url", s.url, "--from", "first", "--state", file).start()
	require.Contains(t, p.stdout.waitFor(t, "the next transaction", func(text string) bool { return strings.HasSuffix(text, second) }), second)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

// The position is written in the folder of the file, too.
func TestTailWhereTheStateCannotBeReplaced(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(file+".tmp", 0o700))
	code, _, stderr := invoke(t, nil, "tail", "--url", s.url, "--state", file)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "write the state")
}

func TestTailWhereTheStateCannotBeWritten(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	code, _, stderr := invoke(t, nil, "tail", "--url", s.url, "--state", filepath.Join(t.TempDir(), "no", "folder"))
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "lock the state")
}

func TestTailWhenItsReaderGoes(t *testing.T) {
	t.Parallel()
	s := newStream(t, true)
	first := s.add("121", 1)
	p := command(t, nil, "tail", "--url", s.url, "--from", "first")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	p.cmd.Stdout = w
	p.start()
	require.NoError(t, w.Close())
	got := make([]byte, len(first))
	_, err = io.ReadFull(r, got)
	require.NoError(t, err)
	require.Equal(t, first, string(got))
	require.NoError(t, r.Close())
	s.add("122", 1)
	require.Equal(t, 0, p.wait(), p.stderr.String())
	require.NotContains(t, p.stderr.String(), "pipe")
}

func TestTailOfAServerWithoutStatus(t *testing.T) {
	t.Parallel()
	s := newStream(t, false)
	want := s.add("121", 1)
	code, _, stderr := invoke(t, nil, "tail", "--url", s.url)
	require.Equal(t, exitFailure, code)
	require.Contains(t, stderr, "no /status")
	require.Contains(t, stderr, "--replica-version")

	file := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.WriteFile(file, []byte(`{"replica_version":"120","watermark":"120"}`), 0o600))
	p := command(t, nil, "tail", "--url", s.url, "--state", file).start()
	require.Equal(t, want, p.stdout.waitLines(t, 3))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

func TestTailForAWhile(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := invoke(t, nil, "tail", "--url", "ws://127.0.0.1:1", "--for", "300ms")
	require.Equal(t, 0, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "connection refused")
}
