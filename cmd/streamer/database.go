package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"millrace/sql"
	"millrace/streamer"
	"millrace/streamer/client"
)

const (
	defaultAppID   = "millrace"
	defaultSchema  = "cdc"
	connectTimeout = 10 * time.Second // if the connection string names none
)

// shardFlags say which log of a change database is meant.
type shardFlags struct {
	AppID  string `name:"app-id" placeholder:"NAME" help:"Application the log belongs to: part of the names of slots, publication and schema. Default: millrace."`
	Shard  int    `default:"0" placeholder:"NUMBER" help:"Number of the shard, part of the same names. Default: 0."`
	Schema string `placeholder:"NAME" help:"Schema of the log in the change database. Default: cdc, or APP_SHARD/cdc if --app-id is given."`
}

func (f shardFlags) appID() string {
	if f.AppID == "" {
		return defaultAppID
	}
	return f.AppID
}

func (f shardFlags) schema() string {
	switch {
	case f.Schema != "":
		return f.Schema
	case f.AppID != "":
		return f.AppID + "_" + strconv.Itoa(f.Shard) + "/cdc"
	}
	return defaultSchema
}

// Validate is called by the flag library.
func (f shardFlags) Validate() error {
	if f.Shard < 0 {
		return fmt.Errorf("--shard: %d is negative", f.Shard)
	}
	if err := streamer.CheckApp(f.appID(), f.Shard); err != nil {
		return fmt.Errorf("--app-id: %w", err)
	}
	if err := sql.CheckSchema(f.schema()); err != nil {
		flag := "--schema"
		if f.Schema == "" {
			flag = "--app-id"
		}
		return fmt.Errorf("%s: schema %q: %w", flag, f.schema(), err)
	}
	return nil
}

// maybePassword finds connection strings of both forms that may hold a password.
var maybePassword = regexp.MustCompile(`(?i)://[^@]*:.*@|password`)

// parseDatabase reads a connection string. What it says about a wrong one has no part of
// a password in it.
func parseDatabase(flag, text string) (*pgx.ConnConfig, error) {
	if strings.TrimSpace(text) == "" { // the driver would take a database from thin air
		return nil, fmt.Errorf("%s: is empty; want postgres://USER:PASSWORD@HOST:PORT/DATABASE, or key=value pairs", flag)
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		if maybePassword.MatchString(text) {
			return nil, fmt.Errorf("%s: not a connection string; want postgres://USER:PASSWORD@HOST:PORT/DATABASE with what is special in the password as %%XX, or key=value pairs", flag)
		}
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	return config, nil
}

const changeDatabase = "change database"

// explain names what a person must mend about the change database.
func (f shardFlags) explain(err error) error {
	return streamer.ExplainDatabase(err, changeDatabase, f.schema())
}

// discover asks the change database who owns the log.
func (f shardFlags) discover(ctx context.Context, config *pgx.ConnConfig) (string, error) {
	address, err := client.Discovery(config, f.schema())(ctx)
	switch {
	case errors.Is(err, client.ErrPermanent):
		return "", permanent{f.explain(err)}
	case err != nil:
		return "", f.explain(err)
	}
	return address, nil
}

// permanent says in its own words that trying again does not help.
type permanent struct{ error }

func (e permanent) Unwrap() []error { return []error{e.error, client.ErrPermanent} }

// explainMigration names the state of a role that may not migrate; what to do about it
// has been said.
func explainMigration(err error) error {
	if !mayNot(err) {
		return err
	}
	return fmt.Errorf("permission-missing: %w", err)
}

// adviseOwner says who may do what was refused.
func adviseOwner(err error) error {
	if !mayNot(err) {
		return err
	}
	return explainMigration(fmt.Errorf("%w; only the role that owns the schema may migrate it", err))
}

func mayNot(err error) bool {
	const insufficientPrivilege = "42501"
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == insufficientPrivilege
}
