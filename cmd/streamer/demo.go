package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/db/pgtest"
	"millrace/streamer"
	"millrace/streamer/client"
)

// demoCommand shows it all on a PostgreSQL of its own. Standard output has the changes,
// standard error everything else.
type demoCommand struct {
	For    time.Duration `default:"0s" placeholder:"DURATION" help:"End after this time, counted from the first change; 0s: never. Default: 0s."`
	Listen string        `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address to serve on; if it is taken, a free port is. Default: 127.0.0.1:0, a free port."`
}

const demoDatabase = "demo"

// errDemoOver is the cause of a stop after --for.
var errDemoOver = errors.New("the time of the demo is over")

// Validate is called by the flag library.
func (c *demoCommand) Validate() error {
	if c.For < 0 {
		return errors.New("--for: must not be negative")
	}
	return checkAddress("--listen", c.Listen)
}

// Run shows changes until ctx or the time ends.
func (c *demoCommand) Run(ctx context.Context, log *slog.Logger) (err error) {
	explain(os.Stderr, "starting a temporary PostgreSQL\n")
	// Its data need not survive, but a commit must reach the log at once, or every change
	// would show a moment later than it was made.
	postgres, err := pgtest.Start(ctx, pgtest.Options{Settings: []string{"synchronous_commit=on"}})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// Whatever happens, no process and no file is left.
	defer func() { err = errors.Join(err, postgres.Stop()) }()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d := &demo{command: c, log: log, postgres: postgres, cancel: cancel}
	d.stop(d.run(ctx))
	d.parts.Wait()
	switch cause := context.Cause(ctx); {
	case d.err == nil || errors.Is(d.err, errReaderGone):
		return nil
	case errors.Is(cause, errDemoOver):
		return nil
	}
	return d.err
}

// demo is a running demonstration: parts that end together.
type demo struct {
	command  *demoCommand
	log      *slog.Logger
	postgres *pgtest.Server
	cancel   context.CancelCauseFunc

	parts sync.WaitGroup
	once  sync.Once
	err   error // of the part that ended first
}

// stop ends every part; the first to call it says why.
func (d *demo) stop(err error) {
	d.once.Do(func() {
		d.err = err
		d.cancel(err)
	})
}

func (d *demo) part(ctx context.Context, name string, run func(context.Context) error) {
	d.parts.Go(func() {
		err := run(ctx)
		if ctx.Err() != nil {
			return // it was told to stop
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		d.stop(err)
	})
}

// run starts the parts and waits until ctx ends.
func (d *demo) run(ctx context.Context) error {
	url := d.postgres.URL(demoDatabase)
	if err := d.prepare(ctx, url); err != nil {
		return unlessStopped(ctx, err)
	}
	if _, err := migrateLog(ctx, url, "temporary PostgreSQL", defaultSchema); err != nil {
		return unlessStopped(ctx, err)
	}
	started := make(chan string, 1) // Started does not wait for us
	d.part(ctx, "serve", func(ctx context.Context) error {
		return streamer.Run(ctx, streamer.Config{
			UpstreamDB: url,
			TaskID:     "demo",
			Listen:     free(ctx, d.command.Listen),
			Logger:     d.log,
			Started:    func(address string) { started <- address },
		})
	})
	select {
	case <-ctx.Done():
		return nil
	case address := <-started:
		d.describe(os.Stderr, url, address)
		d.part(ctx, "workload", func(ctx context.Context) error { return runWorkload(ctx, url) })
		d.part(ctx, "print", func(ctx context.Context) error { return d.print(ctx, address) })
	}
	<-ctx.Done()
	return nil
}

// prepare makes the database with the sample tables.
func (d *demo) prepare(ctx context.Context, url string) error {
	for _, step := range []struct{ url, query string }{
		{d.postgres.URL("postgres"), `create database ` + demoDatabase},
		{url, demoTables},
	} {
		conn, err := pgx.Connect(ctx, step.url)
		if err != nil {
			return fmt.Errorf("connect to the temporary PostgreSQL: %w", err)
		}
		_, err = conn.Exec(ctx, step.query)
		if err = errors.Join(err, conn.Close(ctx)); err != nil {
			return fmt.Errorf("prepare the temporary PostgreSQL: %w", err)
		}
	}
	return nil
}

// print writes every change since the streamer began.
func (d *demo) print(ctx context.Context, address string) error {
	out := newLineWriter(os.Stdout)
	var end *time.Timer
	subscriber, err := client.New(client.Config{
		URL: "ws://" + address, TaskID: "demo", ID: "demo/print",
		Watermark: client.First,
		Handler: func(ctx context.Context, m client.Message) error {
			if end == nil && m.Kind != client.Status && d.command.For > 0 {
				end = time.AfterFunc(d.command.For, func() { d.cancel(errDemoOver) })
			}
			return out.handle(ctx, m)
		},
		Idle:   out.flush,
		Logger: d.log,
	})
	if err != nil {
		return err
	}
	return subscriber.Run(ctx)
}

func (d *demo) describe(w io.Writer, url, address string) {
	explain(w, `
A PostgreSQL with a small shop is running, and a streamer. What follows on standard
output are the shop's changes, as every subscriber gets them. Try in another terminal:

  look at the data   psql '%[1]s'
  change it          psql '%[1]s' -c "update product set price = price + 1"
  the log's state    psql '%[1]s' -x -c 'select * from cdc.status'
  the same, by HTTP  curl http://%[2]s/status
  another reader     %[3]s tail --url ws://%[2]s --from first
  one that resumes   %[3]s tail --url ws://%[2]s --state /tmp/shop.state

Subscribers connect to ws://%[2]s. ^C ends everything and leaves nothing behind.

`, url, address, os.Args[0])
}

// explain writes for a person; there is nobody to tell if that does not work.
func explain(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// free returns the address, or one with a free port if its port is taken.
func free(ctx context.Context, address string) string {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err == nil {
		_ = listener.Close() // only asked
		return address
	}
	host, port, splitErr := net.SplitHostPort(address)
	if !errors.Is(err, syscall.EADDRINUSE) || splitErr != nil {
		return address // whoever listens there will say what is wrong
	}
	explain(os.Stderr, "port %s is taken, using a free one\n", port)
	return net.JoinHostPort(host, "0")
}
