package streamer

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"

	"millrace/sql"
	"millrace/streamer/server"
	"millrace/streamer/source/postgres"
	"millrace/streamer/watermark"
	"millrace/streamer/wire"
)

const (
	defaultSchema       = "cdc"
	defaultAppID        = "millrace"
	defaultListen       = ":4848"
	defaultRetention    = 24 * time.Hour
	defaultMaxAge       = 6 * time.Hour
	defaultSlotWait     = time.Second
	defaultDrainTimeout = 10 * time.Second
	defaultGrace        = 30 * time.Second

	// applicationName is that of every connection to the change database: by it the
	// holders of locks that may be ended are told from strangers.
	applicationName = "zero-change-streamer"

	maxIdentifier = 63 // characters of a name in PostgreSQL
	maxSlotDigits = 10 // of the number that ends a slot's name; more than will be made
)

// Config says what to stream, where to keep it, and whom to serve. UpstreamDB is
// required.
type Config struct {
	UpstreamDB string // connection string of the database whose changes are wanted
	ChangeDB   string // that of the database that holds the log; UpstreamDB if empty
	Schema     string // of the log; cdc if empty

	// AppID and Shard name the slots and the publication; millrace and 0.
	AppID string
	Shard int

	TaskID string // name of this task in the owner column; the host name if empty

	// Publications to stream; the one of all tables of schema public if empty.
	Publications []string

	Listen string // address to serve on; :4848 if empty
	// Advertise is host:port under which subscribers find us; worked out if empty. With
	// wss:// before it they speak TLS, as they do in any case if we do.
	Advertise string

	// TLSCert and TLSKey name files in PEM: the server speaks TLS. They are read again when
	// they change. Plain if both are empty.
	TLSCert string
	TLSKey  string

	// AuthTokenFile names a file with a token on each line, of which every request but
	// health checks must have one. It is read again when it changes. None if empty.
	AuthTokenFile string

	// PathBase is the one segment that may stand before the path of a subscription; any if
	// empty.
	PathBase string

	// HealthSplit lets GET / answer as soon as the process listens, and leaves it to
	// /keepalive to say whether subscribers are served.
	HealthSplit bool

	// StartupDelay is how long to serve health checks before the stream starts; a
	// serving subscription ends the delay. 0: none.
	StartupDelay time.Duration

	// Slot is a replication slot that all streamers of the log share, one after the other.
	// Every streamer makes one of its own if it is empty.
	Slot string

	// Adopt takes a log that Zero has written for whole although Slot is confirmed past
	// its head.
	Adopt bool

	// ReplicaWatermark is the position of a replica of this history. If the log ends
	// before the slot that continues it, and the replica does not, the log is begun again
	// there, with the cookies of the replica (as of stream_start; none if nil).
	ReplicaWatermark string
	ReplicaCookies   json.RawMessage

	// BackupURL is where subscribers find the backup of a replica that report_backup tells
	// of. With it the log is purged, and upstream confirmed, up to the backup at most.
	BackupURL string

	// BackupMetricsURL is where the program that makes the backup tells how far it is: a gauge
	// litestream_replica_progress with a label watermark. Others call report_backup.
	BackupMetricsURL string

	// ReservationMaxAge is how long a subscriber may take to restore it before the log is
	// purged all the same; 6h if zero, without limit if negative.
	ReservationMaxAge time.Duration

	// Retention and RetentionBytes are how much of the log is kept where there is no
	// backup. Subscribers that are connected hold back the first, not the second.
	Retention      time.Duration // 24h if zero, for ever if negative
	RetentionBytes int64         // no limit if zero
	CleanupEvery   time.Duration // how often the log is purged; 30s if zero

	// AutoReset allows to drop the log and to begin a new history where the old one
	// cannot go on.
	AutoReset bool

	TailMaxBytes          int64         // memory for what is not stored yet; 64 MiB if zero
	SubscriberWindowBytes int64         // un-acked bytes at which sending waits; 16 MiB if zero
	SubscriberGrace       time.Duration // without any ack until a plain close; 30s if zero, never if negative
	SubscriberGiveUp      time.Duration // without any ack until error 3; never if zero
	MaxSubscribers        int           // connections; no limit if zero
	MinProtocol           int           // oldest protocol version served; 4 if zero

	SlotWait     time.Duration // how long a start waits for the owner's slot before it makes one; 1s if zero
	DrainTimeout time.Duration // how long a stop takes at most; 10s if zero

	// NonFiniteStrings sends NaN and infinity as strings; they are null otherwise.
	NonFiniteStrings bool

	Logger *slog.Logger // discards if nil

	// Started is called once, with the address, when subscribers are served.
	Started func(address string)
}

func (cfg *Config) setDefaults() error {
	if cfg.UpstreamDB == "" {
		return errors.New("streamer: UpstreamDB is required")
	}
	orDefault(&cfg.ChangeDB, cfg.UpstreamDB)
	orDefault(&cfg.Schema, defaultSchema)
	orDefault(&cfg.AppID, defaultAppID)
	orDefault(&cfg.Listen, defaultListen)
	orDefault(&cfg.SubscriberGrace, defaultGrace)
	orDefault(&cfg.MinProtocol, wire.MinVersion)
	orDefault(&cfg.Retention, defaultRetention)
	orDefault(&cfg.ReservationMaxAge, defaultMaxAge)
	orDefault(&cfg.SlotWait, defaultSlotWait)
	orDefault(&cfg.DrainTimeout, defaultDrainTimeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.TaskID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("streamer: TaskID is empty and the host has no name: %w", err)
		}
		cfg.TaskID = host
	}
	if err := CheckApp(cfg.AppID, cfg.Shard); err != nil {
		return fmt.Errorf("streamer: %w", err)
	}
	if err := sql.CheckSchema(cfg.Schema); err != nil {
		return fmt.Errorf("streamer: schema %q: %w", cfg.Schema, err)
	}
	switch {
	case cfg.Slot != "" && CheckSlot(cfg.Slot) != nil:
		return fmt.Errorf("streamer: %w", CheckSlot(cfg.Slot))
	case cfg.Adopt && cfg.Slot == "":
		return errors.New("streamer: Adopt needs Slot, the one that Zero has used")
	case cfg.ReplicaWatermark != "" && watermark.Check(cfg.ReplicaWatermark) != nil:
		return fmt.Errorf("streamer: replica watermark: %w", watermark.Check(cfg.ReplicaWatermark))
	case cfg.BackupMetricsURL != "" && cfg.BackupURL == "":
		return errors.New("streamer: BackupMetricsURL needs BackupURL")
	case cfg.ReplicaCookies != nil && cfg.ReplicaWatermark == "":
		return errors.New("streamer: ReplicaCookies need ReplicaWatermark")
	case (cfg.TLSCert == "") != (cfg.TLSKey == ""):
		return errors.New("streamer: TLSCert and TLSKey go together")
	case cfg.PathBase != "" && CheckPathBase(cfg.PathBase) != nil:
		return fmt.Errorf("streamer: path base: %w", CheckPathBase(cfg.PathBase))
	case cfg.TailMaxBytes < 0, cfg.SubscriberWindowBytes < 0, cfg.RetentionBytes < 0, cfg.MaxSubscribers < 0:
		return errors.New("streamer: limits must not be negative")
	case cfg.StartupDelay < 0, cfg.SubscriberGiveUp < 0, cfg.SlotWait < 0, cfg.DrainTimeout < 0:
		return errors.New("streamer: times must not be negative")
	case cfg.MinProtocol > wire.MaxVersion:
		return fmt.Errorf("streamer: protocol version %d does not exist, the newest is %d", cfg.MinProtocol, wire.MaxVersion)
	}
	return nil
}

// CheckApp says whether slots and publications can be named for a shard of an
// application.
func CheckApp(app string, shard int) error {
	if shard < 0 {
		return fmt.Errorf("shard %d is negative", shard)
	}
	if err := postgres.CheckApp(app); err != nil {
		return fmt.Errorf("app id %q: %w; choose another one", app, err)
	}
	if n := len(slotPrefix(app, shard)) + maxSlotDigits - maxIdentifier; n > 0 {
		return fmt.Errorf("app id %q: too long by %d characters for the names of slots", app, n)
	}
	return nil
}

// CheckSlot says whether a shared slot can have this name.
func CheckSlot(name string) error { return postgres.CheckSlot(name) }

// CheckWatermark says whether a text is a watermark.
func CheckWatermark(text string) error { return watermark.Check(text) }

// CheckPathBase says whether a text can stand before the path of a subscription.
func CheckPathBase(base string) error { return wire.CheckBase(base) }

// CheckCertificate says whether the files of a certificate and its key can be used.
func CheckCertificate(certificate, key string) error {
	_, err := server.NewCertificate(certificate, key, slog.New(slog.DiscardHandler))
	return err
}

// CheckTokenFile says whether a file has a token.
func CheckTokenFile(name string) error {
	_, err := server.NewTokens(name, slog.New(slog.DiscardHandler))
	return err
}

// messagePrefix is that of the logical messages that we write.
func messagePrefix(app string, shard int) string { return fmt.Sprintf("millrace/%s/%d", app, shard) }

// slotBrand begins the names of all slots that we make; Zero's begin with the app [R28].
const slotBrand = "millrace_"

func slotPrefix(app string, shard int) string { return fmt.Sprintf("%s%s_%d_", slotBrand, app, shard) }

func orDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// passwords are taken out of what a parser says about a connection string.
var passwords = regexp.MustCompile(`(://[^:@/\s]*:)[^@\s]*@|(password=)('[^']*'|\S+)`)

// changeDB returns how to connect to the change database.
func (cfg *Config) changeDB() (*pgx.ConnConfig, error) {
	conn, err := pgx.ParseConfig(cfg.ChangeDB)
	if err != nil {
		return nil, fmt.Errorf("change database: %s", passwords.ReplaceAllString(err.Error(), "$1$2xxxxx@"))
	}
	conn.RuntimeParams["application_name"] = applicationName
	conn.RuntimeParams["search_path"] = pgx.Identifier{cfg.Schema}.Sanitize()
	conn.RuntimeParams["client_encoding"] = "UTF8"
	// Our queries read a few rows of tables that were never analysed: the planner takes
	// them for large ones and would compile for longer than they run, seconds on a busy
	// server.
	conn.RuntimeParams["jit"] = "off"
	if conn.ConnectTimeout == 0 {
		conn.ConnectTimeout = 10 * time.Second
	}
	return conn, nil
}
