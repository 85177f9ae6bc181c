package main

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
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
	return nil
}

// maybePassword finds connection strings of both forms that may hold a password.
var maybePassword = regexp.MustCompile(`(?i)://[^@]*:.*@|password`)

// parseDatabase reads a connection string. What it says about a wrong one has no part of
// a password in it.
func parseDatabase(flag, text string) (*pgx.ConnConfig, error) {
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
