package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"millrace/streamer"
)

// serveCommand streams and serves until it is told to stop.
type serveCommand struct {
	UpstreamDB string `name:"upstream-db" required:"" placeholder:"URL" help:"Connection string of the database whose changes are wanted. Its role needs REPLICATION and the right to make the publication."`
	ChangeDB   string `name:"change-db" placeholder:"URL" help:"Connection string of the database that holds the change log. Default: the upstream."`
	shardFlags

	TaskID      string   `name:"task-id" placeholder:"NAME" help:"Name of this process, as shown by status. Default: the host name."`
	Publication []string `placeholder:"NAME" help:"Publications to stream; repeat it for several. Default: one of all tables of schema public, which is made if it is missing."`
	Slot        string   `placeholder:"NAME" help:"Replication slot that all streamers of the log share: each takes it from the one before, by force. It is made if there is no log yet. Default: every process makes one of its own."`
	Adopt       bool     `help:"Take a log that Zero has written for whole although the slot is confirmed past its end. Needs --slot. Default: stop and say so."`
	NoMigrate   bool     `name:"no-migrate" help:"Leave the schema of the log as it is. Default: it is created or updated first."`

	Listen         string        `default:":4848" placeholder:"HOST:PORT" help:"Address to serve on. Default: :4848, on every interface."`
	Advertise      string        `placeholder:"HOST:PORT" help:"Address under which subscribers find this process, with wss:// before it if something in front of it speaks TLS. Default: the machine's preferred address and the port of --listen."`
	TLSCert        string        `name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate in PEM, with those that lead to its authority: subscribers connect with TLS. It is read again when the file changes. Needs --tls-key. Default: none, no TLS."`
	TLSKey         string        `name:"tls-key" type:"path" placeholder:"FILE" help:"Private key of --tls-cert, in PEM. Default: none."`
	AuthTokenFile  string        `type:"path" placeholder:"FILE" help:"File with a token on each line; every request but / and /keepalive must have one. Blank lines and lines that begin with # do not count. It is read again when it changes. Default: none, whoever reaches the port may ask."`
	PathBase       string        `placeholder:"NAME" help:"The one segment that may stand before the path of a subscription, /NAME/replication/…; none may, too. Default: any one."`
	HealthSplit    bool          `help:"Answer GET / as soon as the process listens, and GET /keepalive when subscribers are served. Default: both when subscribers are served."`
	StartupDelay   time.Duration `default:"0s" placeholder:"DURATION" help:"How long to answer health checks before the stream is taken over. Default: 0s."`
	MaxSubscribers int           `default:"0" placeholder:"NUMBER" help:"Most connections served at once; further ones get a 503. Default: 0, no limit."`
	MinProtocol    int           `default:"4" placeholder:"VERSION" help:"Oldest protocol version served, 1 to 6. Default: 4."`

	ReplicaWatermark string          `name:"replica-watermark" placeholder:"WATERMARK" help:"Position of a replica of the log's history. Where the log ends before its slot, and the replica does not, the log is begun again there. Default: stop and say so."`
	ReplicaCookies   json.RawMessage `name:"replica-cookies" type:"filecontent" placeholder:"FILE" help:"What the replica knows of tables and backfills, as JSON: {\"tableMetadata\": […], \"backfilling\": […]}. Needs --replica-watermark. Default: nothing."`

	AutoReset        bool `help:"Drop the log and begin a new history where the old one cannot go on, or where the publications differ. Subscribers then need a new copy of the data. Default: stop and say so."`
	NonFiniteStrings bool `help:"Send NaN and infinity as strings. Default: as null."`

	BackupURL         string        `name:"backup-url" placeholder:"URL" help:"Where subscribers find the backup of a replica. The log is then purged, and upstream confirmed, up to what report_backup has told of, and no further. Default: there is no backup."`
	BackupMetricsURL  string        `name:"backup-metrics-url" placeholder:"URL" help:"Where the program that makes the backup tells how far it is, in Prometheus' text format: gauge litestream_replica_progress with a label watermark, asked once a minute. Needs --backup-url. Default: only report_backup counts."`
	ReservationMaxAge time.Duration `name:"reservation-max-age" default:"6h" placeholder:"DURATION" help:"How long a subscriber may take to restore the backup before its log may be purged all the same; 0s: without limit. Default: 6h."`
	Retention         time.Duration `default:"24h" placeholder:"DURATION" help:"How long changes are kept where there is no backup, and longer for subscribers that are connected; 0s: for ever. Default: 24h."`
	RetentionBytes    int64         `default:"0" placeholder:"BYTES" help:"How much of the newest changes is kept at most where there is no backup, whoever is connected. Default: 0, no limit."`

	TailMaxBytes          int64         `default:"67108864" placeholder:"BYTES" help:"Memory for changes that are not stored yet; beyond it reading waits. Default: 67108864 bytes (64 MiB)."`
	SubscriberWindowBytes int64         `default:"16777216" placeholder:"BYTES" help:"Un-acked bytes at which sending to one subscriber waits. Default: 16777216 bytes (16 MiB)."`
	SubscriberGrace       time.Duration `default:"30s" placeholder:"DURATION" help:"How long a subscriber may ack nothing of what it was sent before it is disconnected; 0s: for ever. Default: 30s."`
	SubscriberGiveUp      time.Duration `default:"0s" placeholder:"DURATION" help:"How long until it is told to start from a new copy instead; 0s: never. Default: 0s."`
	SlotWait              time.Duration `default:"1s" placeholder:"DURATION" help:"How long a start waits for the slot of an owner that may have stopped, before it makes one of its own and takes over from a living one. Default: 1s."`
	DrainTimeout          time.Duration `default:"10s" placeholder:"DURATION" help:"How long an orderly stop may take. Default: 10s."`
}

// Validate is called by the flag library.
func (c *serveCommand) Validate() error {
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"--startup-delay", int64(c.StartupDelay)},
		{"--max-subscribers", int64(c.MaxSubscribers)},
		{"--tail-max-bytes", c.TailMaxBytes},
		{"--subscriber-window-bytes", c.SubscriberWindowBytes},
		{"--reservation-max-age", int64(c.ReservationMaxAge)},
		{"--retention", int64(c.Retention)},
		{"--retention-bytes", c.RetentionBytes},
		{"--subscriber-grace", int64(c.SubscriberGrace)},
		{"--subscriber-give-up", int64(c.SubscriberGiveUp)},
		{"--slot-wait", int64(c.SlotWait)},
		{"--drain-timeout", int64(c.DrainTimeout)},
	} {
		if limit.value < 0 {
			return fmt.Errorf("%s: must not be negative", limit.flag)
		}
	}
	if c.MinProtocol < 1 || c.MinProtocol > 6 {
		return fmt.Errorf("--min-protocol: %d is not one of 1 to 6", c.MinProtocol)
	}
	if err := checkAddress("--listen", c.Listen); err != nil {
		return err
	}
	if c.Adopt && c.Slot == "" {
		return errors.New("--adopt: needs --slot, the replication slot that Zero has used")
	}
	if c.BackupMetricsURL != "" {
		if c.BackupURL == "" {
			return errors.New("--backup-metrics-url: needs --backup-url, which subscribers are told")
		}
		if u, err := url.Parse(c.BackupMetricsURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("--backup-metrics-url: %q is no http or https URL", c.BackupMetricsURL)
		}
	}
	if c.ReplicaWatermark != "" {
		if err := streamer.CheckWatermark(c.ReplicaWatermark); err != nil {
			return fmt.Errorf("--replica-watermark: %w", err)
		}
	}
	switch {
	case len(c.ReplicaCookies) == 0:
		c.ReplicaCookies = nil
	case c.ReplicaWatermark == "":
		return errors.New("--replica-cookies: needs --replica-watermark")
	case !json.Valid(c.ReplicaCookies):
		return errors.New("--replica-cookies: the file is not JSON")
	}
	if c.Slot != "" {
		if err := streamer.CheckSlot(c.Slot); err != nil {
			return fmt.Errorf("--slot: %w", err)
		}
	}
	if err := c.checkDoors(); err != nil {
		return err
	}
	if c.Advertise != "" {
		if err := checkAdvertised(c.Advertise); err != nil {
			return err
		}
	}
	if _, err := parseDatabase("--upstream-db", c.UpstreamDB); err != nil {
		return err
	}
	if _, err := parseDatabase("--change-db", c.changeDB()); err != nil {
		return err
	}
	return c.shardFlags.Validate()
}

// checkDoors says whether what guards the port can be used.
func (c *serveCommand) checkDoors() error {
	switch {
	case c.TLSCert != "" && c.TLSKey == "":
		return errors.New("--tls-cert: needs --tls-key")
	case c.TLSKey != "" && c.TLSCert == "":
		return errors.New("--tls-key: needs --tls-cert")
	}
	if c.TLSCert != "" {
		if err := streamer.CheckCertificate(c.TLSCert, c.TLSKey); err != nil {
			return fmt.Errorf("--tls-cert, --tls-key: %w", err)
		}
	}
	if c.AuthTokenFile != "" {
		if err := streamer.CheckTokenFile(c.AuthTokenFile); err != nil {
			return fmt.Errorf("--auth-token-file: %w", err)
		}
	}
	if c.PathBase != "" {
		if err := streamer.CheckPathBase(c.PathBase); err != nil {
			return fmt.Errorf("--path-base: %w", err)
		}
	}
	return nil
}

func (c *serveCommand) changeDB() string {
	if c.ChangeDB == "" {
		return c.UpstreamDB
	}
	return c.ChangeDB
}

// Run serves until ctx ends.
func (c *serveCommand) Run(ctx context.Context, log *slog.Logger) error {
	err := c.serve(ctx, log)
	if err != nil {
		log.ErrorContext(ctx, "streamer stopped", "err", err)
		return errLogged
	}
	if cause := context.Cause(ctx); cause != nil { // else the streamer has said why
		log.InfoContext(ctx, "streamer stopped", "cause", cause)
	}
	return nil
}

func (c *serveCommand) serve(ctx context.Context, log *slog.Logger) error {
	if !c.NoMigrate {
		name := changeDatabase
		if c.changeDB() == c.UpstreamDB {
			name = "change database (the upstream)"
		}
		if _, err := migrateLog(ctx, c.changeDB(), name, c.schema()); err != nil {
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		}
	}
	grace := c.SubscriberGrace
	if grace == 0 {
		grace = -1 // never
	}
	retention, maxAge := c.Retention, c.ReservationMaxAge
	if retention == 0 {
		retention = -1 // for ever
	}
	if maxAge == 0 {
		maxAge = -1 // without limit
	}
	err := streamer.Run(ctx, streamer.Config{
		UpstreamDB:            c.UpstreamDB,
		ChangeDB:              c.ChangeDB,
		Schema:                c.schema(),
		AppID:                 c.appID(),
		Shard:                 c.Shard,
		TaskID:                c.TaskID,
		Publications:          c.Publication,
		Listen:                c.Listen,
		Advertise:             c.Advertise,
		TLSCert:               c.TLSCert,
		TLSKey:                c.TLSKey,
		AuthTokenFile:         c.AuthTokenFile,
		PathBase:              c.PathBase,
		HealthSplit:           c.HealthSplit,
		StartupDelay:          c.StartupDelay,
		Slot:                  c.Slot,
		Adopt:                 c.Adopt,
		ReplicaWatermark:      c.ReplicaWatermark,
		ReplicaCookies:        c.ReplicaCookies,
		BackupURL:             c.BackupURL,
		BackupMetricsURL:      c.BackupMetricsURL,
		ReservationMaxAge:     maxAge,
		Retention:             retention,
		RetentionBytes:        c.RetentionBytes,
		AutoReset:             c.AutoReset,
		TailMaxBytes:          c.TailMaxBytes,
		SubscriberWindowBytes: c.SubscriberWindowBytes,
		SubscriberGrace:       grace,
		SubscriberGiveUp:      c.SubscriberGiveUp,
		MaxSubscribers:        c.MaxSubscribers,
		SlotWait:              c.SlotWait,
		DrainTimeout:          c.DrainTimeout,
		MinProtocol:           c.MinProtocol,
		NonFiniteStrings:      c.NonFiniteStrings,
		Logger:                log,
		Started: func(address string) {
			log.InfoContext(ctx, "serving subscribers", "address", address)
		},
	})
	return c.explainUnreachable(err)
}

// explainUnreachable names the database that did not answer; other refusals have been
// explained where they were met.
func (c *serveCommand) explainUnreachable(err error) error {
	var refused *pgconn.PgError
	var connecting *pgconn.ConnectError
	if errors.As(err, &refused) || !errors.As(err, &connecting) {
		return err
	}
	name := changeDatabase
	if upstream, parseErr := parseDatabase("--upstream-db", c.UpstreamDB); parseErr == nil &&
		connecting.Config.Host == upstream.Host && connecting.Config.Port == upstream.Port && connecting.Config.Database == upstream.Database {
		name = "upstream"
	}
	return streamer.ExplainDatabase(err, name, c.schema())
}
