package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer/source"
)

// The states that a source of this package can end with, besides those that the Check
// and Owner hooks answer.
const (
	StateSlotMissing        = "slot-missing"
	StateSlotLost           = "slot-lost"
	StateSlotForeign        = "slot-foreign"
	StateSlotInUse          = "slot-in-use"
	StateNoSlotFree         = "no-slot-free"
	StatePublicationMissing = "publication-missing"
	StateUpstreamChanged    = "upstream-changed"
	StateAccessDenied       = "access-denied"
	StatePermissionMissing  = "permission-missing"
	StateDatabaseMissing    = "database-missing"
	StateMessageTooLarge    = "message-too-large"
)

// SQLSTATEs that are acted on.
const (
	codeUniqueViolation      = "23505"
	codeInvalidAuthorization = "28000"
	codeInvalidPassword      = "28P01"
	codeInvalidCatalogName   = "3D000"
	codeInsufficientPriv     = "42501"
	codeSyntaxError          = "42601"
	codeUndefinedColumn      = "42703"
	codeUndefinedObject      = "42704"
	codeDuplicateObject      = "42710"
	codeUndefinedTable       = "42P01"
	codeTooManyConnections   = "53300"
	codeConfigurationLimit   = "53400"
	codeNotInPrerequisite    = "55000"
	codeObjectInUse          = "55006"
	codeLockNotAvailable     = "55P03"
	codeAdminShutdown        = "57P01"
	codeCannotConnectNow     = "57P03"
	codeProtocolViolation    = "08P01"
	codeFeatureNotSupported  = "0A000"
	codeInvalidSchemaName    = "3F000"
	codeInternalError        = "XX000"
)

var (
	errRestart = errors.New("the sink asked for the stream to be started again")
	errSilent  = errors.New("nothing was received for too long")
	errLeaving = errors.New("the server is shutting down and waits for us")
	errOverdue = errors.New("the slot holds more WAL than it may, and there is no room")
	errEnded   = errors.New("the server ended the stream")
)

// code returns the SQLSTATE of err, or "".
func code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// explain turns the refusals of a connection that only a person can mend into a
// *source.StateError; every other error is returned as it is.
func (u *Upstream) explain(err error) error {
	state := &source.StateError{Err: err}
	switch code(err) {
	case codeInvalidPassword, codeInvalidAuthorization:
		state.State = StateAccessDenied
		state.Detail = fmt.Sprintf("%s refused user %q for database %q", u.address(), u.config.User, u.config.Database)
		state.Hint = "check user and password of the connection string, and pg_hba.conf of the server"
	case codeInvalidCatalogName:
		state.State = StateDatabaseMissing
		state.Detail = fmt.Sprintf("%s has no database %q", u.address(), u.config.Database)
		state.Hint = "check the database of the connection string"
	case codeInsufficientPriv:
		state.State = StatePermissionMissing
		state.Detail = fmt.Sprintf("user %q may not do this in database %q at %s", u.config.User, u.config.Database, u.address())
		state.Hint = fmt.Sprintf("as a superuser run: alter role %s with replication; grant connect on database %s to %s",
			quoteIdentifier(u.config.User), quoteIdentifier(u.config.Database), quoteIdentifier(u.config.User))
	default:
		return err
	}
	return state
}

// refusal says whether err is a state that explain has named: at the first connection
// it ends the process, later it may well be somebody at work on the server.
func refusal(err error) bool {
	var state *source.StateError
	if !errors.As(err, &state) {
		return false
	}
	switch state.State {
	case StateAccessDenied, StatePermissionMissing, StateDatabaseMissing:
		return true
	}
	return false
}
