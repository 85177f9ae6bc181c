package sql_test

import (
	"bytes"
	"flag"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/db/pgtest"
)

// Every isolation/*.spec is run by PostgreSQL's own isolation tester, and what it prints is isolation/*.out. After a
// change on purpose: go test ./sql -run TestIsolation -args -rewrite, and then read the difference.
var rewrite = flag.Bool("rewrite", false, "write sql/isolation/*.out instead of comparing them")

const (
	// A step that waits longer is ended by the tester, which says so in its output.
	stepSeconds = "60"
	// An attempt to lock tables never waits less than deadlock_timeout and a bit: with 1 s the specs would be slow.
	// Sessions that want all tables set it to 1 s all the same, so that a deadlock is told to the others: they themselves
	// would forgive it and try again. And the view takes longer to compile than to run.
	sessionOptions = "-c search_path=" + pgtest.Schema + ",public -c deadlock_timeout=10ms -c jit=off"
)

// fixtures is what all specs begin and end with. A spec can not say it itself for all of them, nor write a brace.
const fixtures = `
create procedure public.empty_log() language plpgsql as $$
begin
	-- Of a few rows this is faster than truncate.
	delete from "replicationState";
	delete from "changeLog";
	delete from "replicationConfig";
	delete from "tableMetadata";
	delete from "backfilling";
	delete from progress;
	delete from streamer;
	delete from reservation;
	perform setval(pg_get_serial_sequence('streamer', 'id'), 1, false);
end
$$;

create procedure public.begin_log(owner text, watermarks text[]) language plpgsql as $$
declare
	v_head      text := '01';
	v_watermark text;
begin
	call empty_log();
	perform ensure_replication_config(replica_version => '01', publications => '{p}', watermark => '01');
	perform assume_ownership(owner => begin_log.owner, owner_address => begin_log.owner || ':4848',
		replica_version => '01', expected => null);
	foreach v_watermark in array begin_log.watermarks loop
		perform store_changes(owner => begin_log.owner, replica_version => '01', expected_head => v_head,
			watermarks => array[v_watermark, v_watermark], positions => '{0,1}',
			changes => array['{"tag":"begin"}', '{"tag":"commit"}']::json[],
			precommits => array['', v_watermark], last_watermark => v_watermark);
		v_head := v_watermark;
	end loop;
end
$$;

create view public.what_is_left as
select
	c."replicaVersion" as version,
	s."lastWatermark" as head,
	s.owner,
	p.streamed_watermark as streamed,
	p.backup_watermark as backup,
	p.purged_watermark as purged,
	(select string_agg(l.watermark || '/' || l.pos, ' ' order by l.watermark, l.pos) from "changeLog" as l) as log
from (select) as always
left join "replicationState" as s on true
left join "replicationConfig" as c on true
left join progress as p on true;
`

func TestIsolation(t *testing.T) {
	t.Parallel()

	program := isolationTester(t)
	specs, err := filepath.Glob(filepath.Join("isolation", "*.spec"))
	require.NoError(t, err)
	require.NotEmpty(t, specs)
	for _, spec := range specs {
		t.Run(strings.TrimSuffix(filepath.Base(spec), ".spec"), func(t *testing.T) {
			t.Parallel()

			got := runSpec(t, program, spec)
			expected := strings.TrimSuffix(spec, ".spec") + ".out"
			if *rewrite {
				require.NoError(t, os.WriteFile(expected, []byte(got), 0o644))
			}
			want, err := os.ReadFile(expected)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "run again with -args -rewrite if it changed on purpose")
		})
	}
}

func TestIsolationOutputHasASpec(t *testing.T) {
	t.Parallel()

	outputs, err := filepath.Glob(filepath.Join("isolation", "*.out"))
	require.NoError(t, err)
	for _, output := range outputs {
		require.FileExists(t, strings.TrimSuffix(output, ".out")+".spec")
	}
}

// runSpec runs a spec in a database of its own, and returns what the tester prints.
func runSpec(t *testing.T, program, spec string) string {
	t.Helper()
	database := pgtest.New(t)
	exec(t, database.Conn(t), fixtures)
	input, err := os.Open(spec)
	require.NoError(t, err)
	defer input.Close()

	options := strings.ReplaceAll(url.QueryEscape(sessionOptions), "+", "%20") // libpq takes + for itself
	command := osexec.CommandContext(t.Context(), program, database.URL+"&options="+options)
	// What a person has set for psql is not for the tester.
	command.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "PG") })
	command.Env = append(command.Env, "PGISOLATIONTIMEOUT="+stepSeconds)
	var out, errs bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = input, &out, &errs
	err = command.Run()
	require.NoError(t, err, "%s%s", errs.String(), out.String())
	require.Empty(t, errs.String(), "a step is not used, or clearing up failed")
	return out.String()
}

// isolationTester finds the program: ISOLATIONTESTER, beside the server's programs, where Debian has it, newest version
// first. It need not be of the server's version.
func isolationTester(t *testing.T) string {
	t.Helper()
	if program := os.Getenv("ISOLATIONTESTER"); program != "" {
		require.FileExists(t, program, "ISOLATIONTESTER names it")
		return program
	}
	database := pgtest.New(t)
	const below = "lib/pgxs/src/test/isolation/isolationtester"
	places, err := filepath.Glob("/usr/lib/postgresql/*/" + below)
	require.NoError(t, err)
	places = append(places, filepath.Join(database.Server.BinDir(), "..", below))
	for _, program := range slices.Backward(places) {
		if _, err := os.Stat(program); err == nil {
			return program
		}
	}
	major := one[int](t, database.Conn(t), `select current_setting('server_version_num')::integer / 10000`)
	require.Fail(t, "PostgreSQL's isolation tester is missing",
		"install it (Debian: apt-get install postgresql-client-%d) or name the program in ISOLATIONTESTER", major)
	return ""
}
