// Command streamer carries the changes of a PostgreSQL database to its subscribers.
//
// This package reads flags, makes the logger and turns signals into a stop; the rest is
// in millrace/streamer. Exit codes: 0 a clean stop, 1 a failure, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// errLogged ends a command that has logged why.
var errLogged = errors.New("see the log")

// commandLine is the documentation of the flags, too.
type commandLine struct {
	Version  kong.VersionFlag `env:"-" help:"Print the version and exit."`
	LogLevel logLevel         `default:"info" placeholder:"LEVEL" help:"Least important messages to log: debug, info, warn or error. Default: info. Logs go to standard error, as text on a terminal and as JSON otherwise."`

	Serve    serveCommand    `cmd:"" help:"Stream the changes of a database and serve them to subscribers."`
	Migrate  migrateCommand  `cmd:"" help:"Create or update the schema of the change log."`
	Tail     tailCommand     `cmd:"" help:"Subscribe and print every message on standard output, one a line."`
	Snapshot snapshotCommand `cmd:"" help:"Copy the published tables, as they are at one position of the log, into a folder to start subscribers from."`
	Status   statusCommand   `cmd:"" help:"Show who owns the change log and what it holds."`
	Demo     demoCommand     `cmd:"" help:"Show it all with a temporary PostgreSQL: a workload, a streamer, and the changes on standard output."`
}

func main() { os.Exit(run(os.Args[1:])) }

// joinNegative writes --flag -1 as --flag=-1: the flag library would take the number for
// a flag, and not say that it must not be negative.
func joinNegative(args []string) []string {
	joined := make([]string, 0, len(args))
	for _, arg := range args {
		last := len(joined) - 1
		if last >= 0 && negative.MatchString(arg) && strings.HasPrefix(joined[last], "--") && !strings.Contains(joined[last], "=") {
			joined[last] += "=" + arg
			continue
		}
		joined = append(joined, arg)
	}
	return joined
}

var negative = regexp.MustCompile(`^-[.0-9]`)

func run(args []string) int {
	var line commandLine
	parser := kong.Must(&line,
		kong.Name("streamer"),
		kong.Description("Streamer reads one logical replication slot, keeps a durable change log in PostgreSQL, and fans the changes out over websockets. Every flag is also an environment variable; a flag wins over its variable, and that over the default."),
		kong.DefaultEnvars("STREAMER"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Vars{"version": version()},
	)
	command, err := parser.Parse(joinNegative(args))
	if err != nil {
		fmt.Fprintf(os.Stderr, "streamer: %v\nTry streamer --help, or streamer COMMAND --help.\n", err)
		return exitUsage
	}

	// A reader that went away is an error of writing, not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run(newLogger(os.Stderr, slog.Level(line.LogLevel)))
	switch {
	case err == nil:
		return 0
	case !errors.Is(err, errLogged):
		fmt.Fprintf(os.Stderr, "streamer: %v\n", err)
	}
	return exitFailure
}
