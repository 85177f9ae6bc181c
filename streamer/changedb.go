package streamer

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/sql"
	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
)

const (
	// stateLogMissing says that the change database has no log in the schema, or one that
	// is older than this program.
	stateLogMissing = "log-missing"
	// stateUnreachable says that no connection to a database came about.
	stateUnreachable = "database-unreachable"
)

// noticed tells of the sessions that a reset has ended, or could not end, since they held
// the tables of the log. What else the server notices is told by the call itself.
func (s *service) noticed(_ *pgconn.PgConn, n *pgconn.Notice) {
	switch n.Code {
	case sql.CodeTerminated, sql.CodeMayNotTerminate:
		s.log.Warn("a session was in the way of a reset", "cause", fmt.Sprintf("%s (%s): %s", n.Message, n.Code, n.Detail))
	}
}

// explainLog names what a person must mend about the change database. It is asked about
// the first call of a start: later the same refusal may be somebody at work there.
func (cfg *Config) explainLog(err error) error {
	name := "change database"
	if cfg.ChangeDB == cfg.UpstreamDB {
		name = "change database (the upstream)"
	}
	return ExplainDatabase(err, name, cfg.Schema)
}

// ExplainDatabase turns an error about a database that a person must mend into a
// *source.StateError: it names the state, what is the case, and what to do. Every other
// error is returned as it is, and so is one that has a state already. The database is
// called name in the text, and schema is where its change log should be. No password is
// in it.
func ExplainDatabase(err error, name, schema string) error {
	var known *source.StateError
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	var refused *pgconn.PgError
	var connecting *pgconn.ConnectError
	isConnecting := errors.As(err, &connecting)
	switch {
	case errors.As(err, &refused):
	case isConnecting:
		return &source.StateError{
			State:  stateUnreachable,
			Detail: fmt.Sprintf("no connection to the %s", name),
			Hint:   "check host, port and sslmode of its connection string, and whether the server runs",
			Err:    oneLine{connecting},
		}
	default:
		return err
	}
	user, database := "the user", ""
	if isConnecting {
		user = fmt.Sprintf("user %q", connecting.Config.User)
		database = connecting.Config.Database
	}
	state := &source.StateError{Err: refused}
	switch refused.Code {
	case "42883", "42P01", "3F000": // undefined function, table, schema
		state.State = stateLogMissing
		state.Detail = fmt.Sprintf("schema %q of the %s has no change log that this user may see, or one of an older version", schema, name)
		state.Hint = "run streamer migrate, or name the schema of the log"
	case "3D000": // undefined database
		state.State = postgres.StateDatabaseMissing
		state.Detail = fmt.Sprintf("the server of the %s has no database %q", name, database)
		state.Hint = "check the database of the connection string"
	case "28000", "28P01": // authorization, password
		state.State = postgres.StateAccessDenied
		state.Detail = fmt.Sprintf("the %s refused %s", name, user)
		state.Hint = "check user and password of the connection string, and pg_hba.conf of the server"
	case "42501": // privilege
		state.State = postgres.StatePermissionMissing
		state.Detail = fmt.Sprintf("%s may not use schema %q of the %s", user, schema, name)
		state.Hint = "as the owner of the log call grant_access(role => …, access => 'streamer'), again after every migration"
		if isConnecting {
			state.Detail = fmt.Sprintf("%s may not connect to database %q of the %s", user, database, name)
			state.Hint = "grant it connect on that database"
		}
	default:
		return err
	}
	return state
}

// oneLine is an error whose attempts are told in one line, as everything in the log.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e oneLine) Unwrap() error { return e.error }
