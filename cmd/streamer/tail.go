package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"millrace/streamer/client"
)

// tailCommand subscribes and prints. Standard output has nothing but messages.
type tailCommand struct {
	URL      string `name:"url" placeholder:"ws://HOST:PORT" help:"Server to subscribe to, with wss:// if it speaks TLS. This or --change-db is required; this wins. Default: none."`
	ChangeDB string `name:"change-db" placeholder:"URL" help:"Connection string of the database that holds the change log: the server is whoever owns the log, asked for before every connection. Default: none."`
	shardFlags
	AuthTokenFile string `type:"path" placeholder:"FILE" help:"File with the token to show to the server: its first line that is not blank and does not begin with #. It is read before every connection. Default: none."`
	TLSCA         string `name:"tls-ca" type:"path" placeholder:"FILE" help:"Certificates of the authorities to trust, in PEM, for a server whose address begins with wss://. It is read before every connection. Default: those of the system."`

	Snapshot         string `type:"path" placeholder:"DIR" help:"Folder that streamer snapshot has written: its rows are printed first, as one transaction, then what came after. Not printed again once --state is past it. Default: none."`
	NonFiniteStrings bool   `help:"Print NaN and infinity in the rows of --snapshot as strings, as a server that was started with this flag does. Default: as null."`

	From           string        `placeholder:"WATERMARK" help:"Commit watermark to start behind; or first: everything the log holds; or head: only what comes from now on. Not used once --state has a position. Default: head."`
	State          string        `type:"path" placeholder:"FILE" help:"File that keeps the position: with it a later run goes on where this one ended, whatever ended it. Default: none."`
	ReplicaVersion string        `placeholder:"VERSION" help:"History that --from belongs to, for servers that have no /status to ask. Default: the server's."`
	TaskID         string        `name:"task-id" placeholder:"NAME" help:"Name of this subscriber's task, for the server. Default: the host name."`
	For            time.Duration `default:"0s" placeholder:"DURATION" help:"End after this time; 0s: never. Default: 0s."`
	MaxMessage     int64         `name:"max-message-bytes" default:"104857600" placeholder:"BYTES" help:"Largest message taken, 1024 to 1073741824 bytes (1 GiB). Default: 104857600 bytes (100 MiB)."`
}

const (
	minMessageBytes = 1 << 10
	maxMessageBytes = 1 << 30
)

// Validate is called by the flag library.
func (c *tailCommand) Validate() error {
	switch {
	case c.URL == "" && c.ChangeDB == "":
		return errors.New("--url or --change-db is required")
	case c.For < 0:
		return errors.New("--for: must not be negative")
	case c.MaxMessage < minMessageBytes || c.MaxMessage > maxMessageBytes:
		return fmt.Errorf("--max-message-bytes: %d is not from %d to %d; a smaller limit would stop at the first change",
			c.MaxMessage, minMessageBytes, maxMessageBytes)
	}
	if c.URL == "" {
		if _, err := parseDatabase("--change-db", c.ChangeDB); err != nil {
			return err
		}
	}
	switch {
	case c.Snapshot == "":
	case c.From != "":
		return errors.New("--from: is not wanted with --snapshot, which has a position of its own")
	case c.ReplicaVersion != "":
		return errors.New("--replica-version: is not wanted with --snapshot, which has one of its own")
	}
	if _, err := client.ParseStart(c.From); err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	if _, err := client.New(client.Config{
		URL: c.URL, Discover: c.discovery(), Watermark: client.Head,
		Handler: func(context.Context, client.Message) error { return nil },
	}); err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	if err := checkNoPath(c.URL); err != nil {
		return err
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	return c.shardFlags.Validate()
}

// checkNoPath refuses what would be left out of a URL without a word.
func checkNoPath(text string) error {
	_, rest, found := strings.Cut(text, "://")
	if !found {
		rest = text
	}
	i := strings.IndexAny(rest, "/?#")
	if i < 0 || rest[i:] == "/" {
		return nil
	}
	if strings.Contains(rest[i:], "token") { // which is not repeated
		return errors.New("--url: a token is not wanted there: put it into a file and give --auth-token-file FILE")
	}
	return fmt.Errorf("--url: %q is not wanted behind the port: the paths of a server are fixed; give ws://HOST:PORT alone", rest[i:])
}

// access is what the server wants to see, and whom to trust; nil: nothing, and the system.
func (c *tailCommand) access() (token func() (string, error), trust func() (*tls.Config, error)) {
	if c.AuthTokenFile != "" {
		token = client.TokenFile(c.AuthTokenFile)
	}
	if c.TLSCA != "" {
		trust = client.TrustFile(c.TLSCA)
	}
	return token, trust
}

// checkAccess says whether the files can be used.
func (c *tailCommand) checkAccess() error {
	token, trust := c.access()
	if token != nil {
		if _, err := token(); err != nil {
			return fmt.Errorf("--auth-token-file: %w", err)
		}
	}
	if trust == nil {
		return nil
	}
	if c.URL != "" && !strings.HasPrefix(c.URL, "wss://") && !strings.HasPrefix(c.URL, "https://") {
		return errors.New("--tls-ca: the address of --url does not begin with wss://")
	}
	if _, err := trust(); err != nil {
		return fmt.Errorf("--tls-ca: %w", err)
	}
	return nil
}

// discovery finds the owner of the log; nil if a URL was given.
func (c *tailCommand) discovery() func(context.Context) (string, error) {
	if c.URL != "" {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		config, err := parseDatabase("--change-db", c.ChangeDB)
		if err != nil {
			return "", err
		}
		return c.discover(ctx, config)
	}
}

// Run prints until ctx or the time ends, or until nobody reads.
func (c *tailCommand) Run(ctx context.Context, log *slog.Logger) error {
	if c.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.For)
		defer cancel()
	}
	start, err := client.ParseStart(c.From)
	if err != nil {
		return err
	}
	if c.Snapshot != "" {
		start = ""
	}
	out := newLineWriter(os.Stdout)
	token, trust := c.access()
	cfg := client.Config{
		URL: c.URL, Discover: c.discovery(), TaskID: c.TaskID,
		Token: token, TLS: trust,
		ReplicaVersion: c.ReplicaVersion, Watermark: start,
		Snapshot: c.Snapshot, NonFiniteStrings: c.NonFiniteStrings,
		Handler: out.handle, Idle: out.flush,
		MaxMessageBytes: c.MaxMessage,
		Logger:          log,
	}
	if c.State != "" {
		unlock, err := stateFile{c.State}.lock()
		if err != nil {
			return err
		}
		defer unlock() //nolint:errcheck // the end of the process does it, too
		if err := c.resume(&cfg, out); err != nil {
			return err
		}
	}
	subscriber, err := client.New(cfg)
	if err != nil {
		return err
	}
	err = subscriber.Run(ctx)
	var refused *client.Refused
	switch {
	case errors.Is(err, errReaderGone):
		return nil
	case errors.Is(err, client.ErrNoStatus):
		return fmt.Errorf("%w: give --replica-version and --from WATERMARK", err)
	case errors.Is(err, client.ErrUnauthorized) && c.AuthTokenFile == "":
		return fmt.Errorf("%w: give --auth-token-file FILE", err)
	case errors.Is(err, client.ErrUnauthorized):
		return fmt.Errorf("%w: put a token that is in the file of the server into %s", err, c.AuthTokenFile)
	case errors.As(err, &refused) && c.Snapshot != "":
		if c.State != "" {
			return fmt.Errorf("%w: make a new snapshot, remove the state file %s, and begin with both anew", err, c.State)
		}
		return fmt.Errorf("%w: make a new snapshot, and begin with it anew", err)
	case errors.As(err, &refused) && c.State != "":
		return fmt.Errorf("%w; to begin anew with what comes from now on, remove the state file %s", err, c.State)
	}
	return err
}

// resume starts at the position of the state file, if it has one, and keeps it there.
func (c *tailCommand) resume(cfg *client.Config, out *lineWriter) error {
	file := stateFile{c.State}
	position, found, err := file.read()
	if err != nil {
		return err
	}
	if found {
		if c.ReplicaVersion != "" && c.ReplicaVersion != position.ReplicaVersion {
			return fmt.Errorf("the state in %s belongs to replica version %s, not to %s: name another file, or remove it to begin anew",
				c.State, position.ReplicaVersion, c.ReplicaVersion)
		}
		if err := c.past(position); err != nil {
			return err
		}
		cfg.Snapshot = ""
		cfg.ReplicaVersion, cfg.Watermark = position.ReplicaVersion, position.Watermark
	}
	keep := func(_ context.Context, p client.Position) error {
		if err := out.flush(); err != nil {
			return err
		}
		return file.write(p)
	}
	cfg.Resolved, cfg.Persist, cfg.PersistTogether = keep, keep, true
	return nil
}

// past says whether the rows of the snapshot, if there is one, were printed before the
// state got to a position. Printing them now would undo what was printed behind them.
func (c *tailCommand) past(position client.Position) error {
	if c.Snapshot == "" {
		return nil
	}
	snapshot, err := client.SnapshotPosition(c.Snapshot)
	if err != nil {
		return fmt.Errorf("%w; the state in %s is at watermark %s: to go on from there, leave --snapshot out", err, c.State, position.Watermark)
	}
	if position.ReplicaVersion == snapshot.ReplicaVersion && position.Watermark >= snapshot.Watermark {
		return nil
	}
	return fmt.Errorf("the state in %s is at watermark %s of replica version %s, the snapshot in %s at %s of %s: it belongs to another copy; "+
		"name another file, or remove it to begin with the snapshot",
		c.State, position.Watermark, position.ReplicaVersion, c.Snapshot, snapshot.Watermark, snapshot.ReplicaVersion)
}
