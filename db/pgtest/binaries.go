package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrNoBinaries says that the machine has no PostgreSQL server to start.
var ErrNoBinaries = errors.New("found no PostgreSQL server (initdb and postgres): " +
	"install it (Debian: apt-get install postgresql) or set PGBIN to the folder of its programs")

// places are where packages put the programs of a server, without a link in PATH.
var places = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/usr/lib/postgresql*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
}

var number = regexp.MustCompile(`\d+`)

// binDir finds the folder of initdb and postgres: PGBIN, PATH, pg_config, then
// the usual places, newest version first.
func binDir() (string, error) {
	if dir := os.Getenv("PGBIN"); dir != "" {
		if !hasServer(dir) {
			return "", fmt.Errorf("PGBIN=%s has no initdb and postgres: %w", dir, ErrNoBinaries)
		}
		return dir, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && hasServer(filepath.Dir(path)) {
			return filepath.Dir(path), nil
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		// Debian's may name a version of which only the client is there.
		if dir := strings.TrimSpace(string(out)); hasServer(dir) {
			return dir, nil
		}
	}
	var dirs []string
	for _, place := range places {
		found, err := filepath.Glob(place)
		if err != nil {
			return "", fmt.Errorf("look into %s: %w", place, err)
		}
		dirs = append(dirs, found...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if i := slices.IndexFunc(dirs, hasServer); i >= 0 {
		return dirs[i], nil
	}
	return "", ErrNoBinaries
}

func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

func version(path string) int {
	n, err := strconv.Atoi(number.FindString(path))
	if err != nil {
		return 0 // no number in the name: after all others
	}
	return n
}

// unprivileged is nil unless we are root, which no PostgreSQL server runs as.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root and found neither user postgres nor nobody to run the server as")
}
