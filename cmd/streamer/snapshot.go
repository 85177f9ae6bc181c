package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"millrace/streamer"
)

// snapshotCommand copies the published tables into a folder.
type snapshotCommand struct {
	UpstreamDB string `name:"upstream-db" required:"" placeholder:"URL" help:"Connection string of the database whose tables are published. Its role needs REPLICATION and SELECT on the published tables."`
	ChangeDB   string `name:"change-db" placeholder:"URL" help:"Connection string of the database that holds the change log. Default: the upstream."`
	shardFlags

	Out      string `required:"" type:"path" placeholder:"DIR" help:"Folder to write to. It is made if it is not there; one that has something in it is refused, unless that is what an interrupted snapshot has left."`
	Jobs     int    `default:"4" placeholder:"NUMBER" help:"Tables copied at once, at most; each takes one connection to the upstream. Default: 4."`
	Compress string `enum:"zstd,gzip,none" default:"zstd" placeholder:"KIND" help:"How files are compressed: zstd, gzip or none. Default: zstd."`
	NoReport bool   `name:"no-report" help:"Do not report the snapshot to the log as a backup, up to which it may be purged. Default: it is reported."`
}

// Validate is called by the flag library.
func (c *snapshotCommand) Validate() error {
	if c.Jobs < 1 {
		return fmt.Errorf("--jobs: %d is not at least 1", c.Jobs)
	}
	if _, err := parseDatabase("--upstream-db", c.UpstreamDB); err != nil {
		return err
	}
	if c.ChangeDB != "" {
		if _, err := parseDatabase("--change-db", c.ChangeDB); err != nil {
			return err
		}
	}
	return c.shardFlags.Validate()
}

// Run copies, unless ctx ends first.
func (c *snapshotCommand) Run(ctx context.Context, log *slog.Logger) error {
	cfg := streamer.SnapshotConfig{
		UpstreamDB:  c.UpstreamDB,
		ChangeDB:    c.ChangeDB,
		Schema:      c.schema(),
		Folder:      c.Out,
		Jobs:        c.Jobs,
		Compression: c.Compress,
		NoReport:    c.NoReport,
		Logger:      log,
	}
	bar := &progressBar{w: os.Stderr}
	if isTerminal(os.Stderr) {
		cfg.Progress = bar.show
	}
	err := streamer.Snapshot(ctx, cfg)
	bar.clear()
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("interrupted: there is no snapshot in %s", c.Out)
	}
	return err
}
