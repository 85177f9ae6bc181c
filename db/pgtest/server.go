// Package pgtest starts a temporary PostgreSQL from the machine's programs and
// gives each test a database of its own.
//
// A Server ends with the process that started it, even when that is killed. It
// takes 0.6 s to start and its files are gone after Stop. Start is also what
// the demo uses; the rest of the package is for tests, see New and Main.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	superuser    = "postgres"
	defaultPort  = 5432
	pollEvery    = 5 * time.Millisecond // how often a starting server is looked at
	stopTimeout  = 20 * time.Second     // then the server is killed
	logTailBytes = 16 << 10
)

// Options say what server to start. The zero value is the fastest one: reached by
// a unix socket only, and careless about power failures.
type Options struct {
	// TCP also listens on 127.0.0.1, at a free port.
	TCP bool
	// Password is demanded of user postgres over TCP; empty: nobody is asked.
	Password string
	// Durable waits for the disk as a real server does, for benchmarks and demos.
	Durable bool
	// Settings are further ones, as in postgresql.conf: "name=value".
	Settings []string
}

// Server is a running PostgreSQL; its superuser is postgres. Use it from one
// goroutine at a time, but for URL, Log and Port.
type Server struct {
	bin        string              // folder of the programs
	dir        string              // 0700, holds data, log and socket
	credential *syscall.Credential // of the server's user; nil: our own
	port       int
	options    Options
	process    *os.Process
	done       chan struct{} // closed when process has ended
}

// Start makes a database cluster and starts a server on it. Errors say what is
// missing on the machine, and have the server's own words.
func Start(ctx context.Context, options Options) (_ *Server, err error) {
	bin, err := binDir()
	if err != nil {
		return nil, err
	}
	credential, err := unprivileged()
	if err != nil {
		return nil, err
	}
	// A socket's path has at most 107 bytes, and the server's user must reach it: so not os.TempDir.
	dir, err := os.MkdirTemp("/tmp", "millrace-pg-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	s := &Server{bin: bin, dir: dir, credential: credential, port: defaultPort, options: options}
	if err := s.giveToServer(dir); err != nil {
		return nil, err
	}
	if options.TCP {
		if s.port, err = freePort(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.initialise(ctx); err != nil {
		return nil, err
	}
	if err := s.start(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (s *Server) initialise(ctx context.Context) error {
	args := []string{
		"-D", filepath.Join(s.dir, "data"), "-U", superuser, "-E", "UTF8", "--no-locale", "--no-sync",
		"--auth-local=trust", "--auth-host=trust",
	}
	if s.options.Password != "" {
		file := filepath.Join(s.dir, "password")
		if err := os.WriteFile(file, []byte(s.options.Password+"\n"), 0o600); err != nil {
			return fmt.Errorf("pass the password: %w", err)
		}
		defer os.Remove(file)
		if err := s.giveToServer(file); err != nil {
			return err
		}
		args[len(args)-1] = "--auth-host=scram-sha-256"
		args = append(args, "--pwfile="+file)
	}
	c := s.command(ctx, "initdb", args...)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("run initdb: %w\n%s", err, out)
	}
	return nil
}

// giveToServer makes the server's user the owner of a file or folder.
func (s *Server) giveToServer(name string) error {
	if s.credential == nil {
		return nil
	}
	if err := os.Chown(name, int(s.credential.Uid), int(s.credential.Gid)); err != nil {
		return fmt.Errorf("give %s to the server's user: %w", name, err)
	}
	return nil
}

// command is a program of the server, to be run as its user.
func (s *Server) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	c.Dir = s.dir // the other user may not be able to read ours
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + s.dir}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: s.credential, Setpgid: true} // ^C in the terminal is ours to handle
	return c
}

func (s *Server) arguments() []string {
	settings := []string{
		"listen_addresses=", "port=" + strconv.Itoa(s.port), "unix_socket_directories=" + s.dir,
		"wal_level=logical", "max_wal_senders=100", "max_replication_slots=100",
		"max_connections=300", "max_prepared_transactions=20",
		"log_line_prefix=%m [%p] %q%a %d ", "shared_buffers=64MB",
	}
	if s.options.TCP {
		settings[0] = "listen_addresses=127.0.0.1"
	}
	if !s.options.Durable {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	args := []string{"-D", filepath.Join(s.dir, "data")}
	for _, setting := range append(settings, s.options.Settings...) {
		args = append(args, "-c", setting)
	}
	return args
}

// start starts the server on the data that is there and waits until it is ready.
func (s *Server) start(ctx context.Context) (err error) {
	logFile, err := os.OpenFile(s.logName(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer logFile.Close()
	// A server that was killed leaves the file that is watched below.
	pidFile := filepath.Join(s.dir, "data", "postmaster.pid")
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", pidFile, err)
	}

	command := s.command(context.WithoutCancel(ctx), "postgres", s.arguments()...) // it outlives ctx
	command.Stdout, command.Stderr = logFile, logFile
	endWithParent(command.SysProcAttr)
	done, started := make(chan struct{}), make(chan error, 1)
	go func() {
		// The signal that ends the server comes when the thread that started it ends, so the thread is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(done)
		err := command.Start()
		started <- err
		if err == nil {
			_ = command.Wait() // how it ended stands in its log
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	s.process, s.done = command.Process, done

	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		content, err := os.ReadFile(pidFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("read %s: %w", pidFile, err), s.Kill())
		}
		// Its eighth line is the state.
		if lines := bytes.Split(content, []byte("\n")); len(lines) >= 8 && bytes.HasPrefix(lines[7], []byte("ready")) {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("start postgres: it ended at once; its log:\n%s", s.Log())
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for postgres: %w; its log:\n%s", ctx.Err(), s.Log()), s.Kill())
		case <-ticker.C:
		}
	}
}

// URL is the connection string of a database, by unix socket.
func (s *Server) URL(database string) string {
	query := url.Values{"host": {s.dir}, "port": {strconv.Itoa(s.port)}}
	return "postgres://" + superuser + "@/" + url.PathEscape(database) + "?" + query.Encode()
}

// TCPURL is the connection string of a database over TCP, password included. The
// server must have been started with Options.TCP.
func (s *Server) TCPURL(database string) string {
	account := url.User(superuser)
	if s.options.Password != "" {
		account = url.UserPassword(superuser, s.options.Password)
	}
	address := url.URL{
		Scheme:   "postgres",
		User:     account,
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return address.String()
}

// Port is the TCP port, if the server was started with Options.TCP.
func (s *Server) Port() int { return s.port }

// Pid is the process id of the server, which a Restart changes.
func (s *Server) Pid() int { return s.process.Pid }

// BinDir is the folder of the server's programs (pg_dump, pg_recvlogical, …).
func (s *Server) BinDir() string { return s.bin }

// Dir is the folder of the server's socket, data and log.
func (s *Server) Dir() string { return s.dir }

func (s *Server) logName() string { return filepath.Join(s.dir, "log") }

// Log is the end of the server's log, for error reports.
func (s *Server) Log() string {
	content, err := os.ReadFile(s.logName())
	if err != nil {
		return err.Error()
	}
	return string(content[max(0, len(content)-logTailBytes):])
}

// Kill crashes the server: no checkpoint, every session is cut off. Its data stays
// for a Restart. Killing it again does nothing.
func (s *Server) Kill() error { return s.end(syscall.SIGQUIT) }

// Restart ends the server in order, if it runs, and starts it on the same data, at
// the same address. Sessions are cut off.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.end(syscall.SIGINT); err != nil {
		return err
	}
	return s.start(ctx)
}

// Stop ends the server at once and removes its files.
func (s *Server) Stop() error {
	err := s.end(syscall.SIGQUIT)
	if rmErr := os.RemoveAll(s.dir); rmErr != nil {
		err = errors.Join(err, fmt.Errorf("remove the server's folder: %w", rmErr))
	}
	return err
}

// end sends the signal and waits until the server has ended.
func (s *Server) end(signal syscall.Signal) error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to postgres: %w", signal, err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
	}
	if err := s.process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill postgres: %w", err)
	}
	<-s.done
	return nil
}
