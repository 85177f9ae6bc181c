package pgtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"millrace/sql"
)

// Schema is what the databases of New are migrated into.
const Schema = "cdc"

const setupTimeout = time.Minute

// shared is the server of this test binary; Main owns it.
var shared struct {
	sync.Mutex
	inMain    bool
	server    *Server
	admin     *pgx.Conn // used under the lock only
	template  string    // name of the migrated database that New clones
	databases int       // how many were made, for their names
}

// Main is the whole of a TestMain: it runs the tests, ends the server that they
// may have started, and fails if a goroutine is left.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
	shared.Lock()
	shared.inMain = true
	shared.Unlock()

	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the test server:", err)
		code = max(code, 1)
	}
	// A failed test may have left something running, and has said why.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	return errors.Join(shared.admin.Close(ctx), shared.server.Stop())
}

// DB is a database of one test.
type DB struct {
	Server *Server // shared by all tests of the binary
	Name   string  // name of the database
	URL    string  // connects as superuser, by unix socket, with no search path
}

// New makes a database for one test, migrated into Schema, and drops it when the
// test ends. A replication slot that is still in use then fails the test.
//
// Sessions run with plpgsql.extra_errors = 'all'.
func New(t testing.TB) *DB {
	t.Helper()
	return newDB(t, true)
}

// Empty makes a database for one test as New does, without migrations.
func Empty(t testing.TB) *DB {
	t.Helper()
	return newDB(t, false)
}

func newDB(t testing.TB, migrated bool) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setupTimeout)
	defer cancel()

	server, name, err := createDatabase(ctx, migrated)
	if err != nil {
		t.Fatalf("make a test database: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context has ended.
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		shared.Lock()
		defer shared.Unlock()
		if _, err := shared.admin.Exec(ctx, `drop database `+name+` with (force)`); err != nil {
			t.Errorf("drop the test database (is a replication slot still in use?): %v", err)
		}
	})
	return &DB{Server: server, Name: name, URL: server.URL(name)}
}

// Conn opens a connection of its own, with Schema and then public in its search
// path, and closes it when the test ends.
func (d *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(d.URL)
	if err != nil {
		t.Fatalf("read the test database's URL: %v", err)
	}
	config.RuntimeParams["search_path"] = Schema + ",public"
	config.RuntimeParams["application_name"] = "pgtest"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
		defer cancel()
		if err := conn.Close(ctx); err != nil {
			t.Errorf("close a connection to the test database: %v", err)
		}
	})
	return conn
}

// createDatabase makes a database; the first time it also starts the server, and
// makes the template.
func createDatabase(ctx context.Context, migrated bool) (server *Server, name string, err error) {
	shared.Lock()
	defer shared.Unlock()
	if !shared.inMain {
		return nil, "", errors.New("the package needs: func TestMain(m *testing.M) { pgtest.Main(m) }")
	}
	if shared.server == nil {
		if err := startShared(ctx); err != nil {
			return nil, "", err
		}
	}
	template := "template0"
	if migrated {
		if shared.template == "" {
			if shared.template, err = makeTemplate(ctx); err != nil {
				return nil, "", err
			}
		}
		template = shared.template
	}
	shared.databases++
	name = "test_" + strconv.Itoa(shared.databases)
	if _, err := shared.admin.Exec(ctx, `create database `+name+` template `+template); err != nil {
		return nil, "", err
	}
	return shared.server, name, nil
}

func startShared(ctx context.Context) error {
	server, err := Start(ctx, Options{Settings: []string{"plpgsql.extra_errors=all"}})
	if err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return errors.Join(fmt.Errorf("connect to the test server: %w", err), server.Stop())
	}
	shared.server, shared.admin = server, admin
	return nil
}

// makeTemplate migrates a database and closes it to everybody: cloning a template
// fails while somebody is connected to it.
func makeTemplate(ctx context.Context) (string, error) {
	name, err := templateName()
	if err != nil {
		return "", err
	}
	if _, err := shared.admin.Exec(ctx, `create database `+name); err != nil {
		return "", fmt.Errorf("make the template: %w", err)
	}
	conn, err := pgx.Connect(ctx, shared.server.URL(name))
	if err != nil {
		return "", fmt.Errorf("connect to the template: %w", err)
	}
	err = sql.Migrate(ctx, conn, Schema)
	if err = errors.Join(err, conn.Close(ctx)); err != nil {
		return "", fmt.Errorf("migrate the template: %w", err)
	}
	if _, err := shared.admin.Exec(ctx, `alter database `+name+` allow_connections false`); err != nil {
		return "", fmt.Errorf("close the template: %w", err)
	}
	return name, nil
}

// templateName tells templates of different migrations apart.
func templateName() (string, error) {
	hash := sha256.New()
	files, err := fs.Glob(sql.FS, "*.sql")
	if err != nil {
		return "", fmt.Errorf("list migrations: %w", err)
	}
	for _, file := range files {
		content, err := fs.ReadFile(sql.FS, file)
		if err != nil {
			return "", fmt.Errorf("read migration %s: %w", file, err)
		}
		fmt.Fprintf(hash, "%s %d\n", file, len(content))
		hash.Write(content)
	}
	return "template_" + hex.EncodeToString(hash.Sum(nil))[:16], nil
}
