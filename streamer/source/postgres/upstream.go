package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ApplicationName tells our connections apart from others' at the upstream: only a
// walsender of this name may be ended by another process of ours [R14].
const ApplicationName = "millrace-source"

const (
	connectTimeout = 10 * time.Second
	queryTimeout   = 30 * time.Second
	closeTimeout   = 5 * time.Second

	// sessionRest is how long the second connection is kept without use.
	sessionRest = time.Minute
)

// settings decide how Postgres writes values as text. A role or database with other
// defaults would change the stream, so every connection sets them.
var settings = map[string]string{
	"application_name":   ApplicationName,
	"bytea_output":       "hex",
	"client_encoding":    "UTF8",
	"DateStyle":          "ISO, MDY",
	"extra_float_digits": "3",
	"IntervalStyle":      "postgres",
	"lc_monetary":        "C",
	"TimeZone":           "UTC",
}

// Upstream is a database whose changes are wanted. It holds no connection: every method
// opens one and closes it.
type Upstream struct {
	config *pgx.ConnConfig
}

// NewUpstream checks a connection string, a URL or key=value pairs, and dials nothing.
// The connection must be a direct one: a transaction pooler cannot carry replication.
func NewUpstream(connString string) (*Upstream, error) {
	if connString == "" {
		return nil, errors.New("upstream: the connection string is empty")
	}
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, fmt.Errorf("upstream: %w", err)
	}
	if config.Database == "" {
		config.Database = config.User // as the server would
	}
	// The few queries asked here are not worth prepared statements.
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.StatementCacheCapacity, config.DescriptionCacheCapacity = 0, 0
	for name, value := range settings {
		config.RuntimeParams[name] = value
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectTimeout
	}
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4,
	}}
	config.DialFunc = dialer.DialContext
	return &Upstream{config: config}, nil
}

// String names the upstream without its password.
func (u *Upstream) String() string {
	return fmt.Sprintf("database %q at %s as user %q", u.config.Database, u.address(), u.config.User)
}

func (u *Upstream) address() string {
	return net.JoinHostPort(u.config.Host, fmt.Sprint(u.config.Port))
}

// connect opens an ordinary connection.
func (u *Upstream) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, u.config.Copy())
	if err != nil {
		return nil, u.explain(err)
	}
	return conn, nil
}

// with runs do on an ordinary connection of its own, within queryTimeout.
func (u *Upstream) with(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	conn, err := u.connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	return do(ctx, conn)
}

// EmitMessage writes a logical message in a transaction of its own, which is flushed at
// once: every stream of the upstream is then told how far it is.
func (u *Upstream) EmitMessage(ctx context.Context, prefix, content string) error {
	return u.with(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, emitMessageSQL, prefix, content); err != nil {
			return fmt.Errorf("emit a message: %w", err)
		}
		return nil
	})
}

// replicationConfig is the configuration of a walsender connection.
func (u *Upstream) replicationConfig() *pgconn.Config {
	config := u.config.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	return config
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it: every answer has been read
}

// session is one ordinary connection that is opened when it is needed and closed when
// nobody has needed it for a while.
type session struct {
	upstream *Upstream
	conn     *pgx.Conn
	used     time.Time
}

// with runs do on the connection, within queryTimeout. One that has not been used for a
// while may have died unnoticed: then do runs once more, on a new one. After an error the
// next call gets a new connection.
func (s *session) with(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()

	for reused := s.conn != nil; ; reused = false {
		if s.conn == nil {
			conn, err := s.upstream.connect(ctx)
			if err != nil {
				return err
			}
			s.conn = conn
		}
		s.used = time.Now()
		err := do(ctx, s.conn)
		if err == nil {
			return nil
		}
		died := s.conn.IsClosed()
		s.close(ctx)
		if !reused || !died || ctx.Err() != nil {
			return err
		}
	}
}

// rest closes the connection if it has not been used for sessionRest.
func (s *session) rest(ctx context.Context, now time.Time) {
	if s.conn != nil && now.Sub(s.used) > sessionRest {
		s.close(ctx)
	}
}

func (s *session) close(ctx context.Context) {
	if s.conn != nil {
		closeConn(ctx, s.conn)
		s.conn = nil
	}
}
