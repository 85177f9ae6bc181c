package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// openTerminal returns both sides of a terminal: what the program writes to, and what a
// person sees.
func openTerminal(t *testing.T) (program, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = person.Close() })
	control := func(request uintptr, value *int32) {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, person.Fd(), request, uintptr(unsafe.Pointer(value)))
		require.Zero(t, errno)
	}
	var locked, number int32
	control(syscall.TIOCSPTLCK, &locked)
	control(syscall.TIOCGPTN, &number)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	require.NoError(t, err)
	return program, person
}

func TestSnapshotOnATerminal(t *testing.T) {
	t.Parallel()
	s := openShop(t, `create table public.item (id int primary key)`, `insert into public.item select generate_series(1, 1000)`)
	defer s.close()
	folder := filepath.Join(t.TempDir(), "copy")
	program, person := openTerminal(t)
	p := command(t, nil, "snapshot", "--upstream-db", s.URL, "--out", folder)
	p.cmd.Stderr = program
	p.start()
	seen := newLockedBuffer()
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		b := make([]byte, 1<<10)
		for {
			n, err := person.Read(b) // an error when the program has closed its side
			_, _ = seen.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	require.Equal(t, 0, p.wait())
	require.NoError(t, program.Close())
	<-shown
	require.Contains(t, seen.String(), "] 100 %  1 of 1 tables  1000 rows  ")
	require.Contains(t, seen.String(), "snapshot written")
	require.NotContains(t, seen.String(), "table copied", "the bar says it")

	// What is no terminal is told in lines.
	code, _, stderr := invoke(t, nil, "snapshot", "--upstream-db", s.URL, "--out", folder+"2")
	require.Equal(t, 0, code, stderr)
	for _, message := range []string{`"msg":"snapshot begun"`, `"msg":"table copied"`, `"table":"public.item","num_rows":1000`, `"msg":"snapshot written"`} {
		require.Contains(t, stderr, message)
	}
	require.NotContains(t, stderr, "%")
	require.Equal(t, 3, strings.Count(stderr, "\n"))
}
