package streamer

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer/source"
	"millrace/streamer/source/postgres"
)

// stateLogMissing says that the change database has no log in the schema, or one that is
// older than this program.
const stateLogMissing = "log-missing"

// explainLog names what a person must mend about the change database. It is asked about
// the first call of a start: later the same refusal may be somebody at work there.
func (cfg *Config) explainLog(err error) error {
	state := &source.StateError{Err: err}
	var refused *pgconn.PgError
	var unreachable *pgconn.ConnectError
	switch errors.As(err, &refused); {
	case refused == nil && errors.As(err, &unreachable):
		return fmt.Errorf("change database: %w; check its address, and whether it runs", err)
	case refused == nil:
		return err
	}
	switch refused.Code {
	case "42883", "42P01", "3F000": // undefined function, table, schema
		state.State = stateLogMissing
		state.Detail = fmt.Sprintf("schema %q of the change database has no change log, or one of an older version", cfg.Schema)
		state.Hint = "run streamer migrate, or name the schema of the log"
	case "3D000": // undefined database
		state.State = postgres.StateDatabaseMissing
		state.Detail = "the server of the change database has no such database"
		state.Hint = "check the database of the connection string"
	case "28000", "28P01": // authorization, password
		state.State = postgres.StateAccessDenied
		state.Detail = "the change database refused the user"
		state.Hint = "check user and password of the connection string, and pg_hba.conf of the server"
	case "42501": // privilege
		state.State = postgres.StatePermissionMissing
		state.Detail = fmt.Sprintf("the user may not use schema %q of the change database", cfg.Schema)
		state.Hint = "grant it usage on the schema, and execute on the functions in it"
	default:
		return err
	}
	return state
}
