package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"millrace/streamer/metrics"
	"millrace/streamer/source/postgres"
)

func TestNew(t *testing.T) {
	t.Parallel()
	up, err := postgres.NewUpstream("host=127.0.0.1 user=u")
	require.NoError(t, err)
	require.Equal(t, `database "u" at 127.0.0.1:5432 as user "u"`, up.String())
	good := postgres.Config{
		Upstream: up, Slot: "s", Publications: []string{"p"},
		Check: func(context.Context, string) error { return nil }, Metrics: metrics.New(prometheus.NewRegistry()),
	}
	_, err = postgres.New(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*postgres.Config){
		"no upstream":        func(c *postgres.Config) { c.Upstream = nil },
		"no slot":            func(c *postgres.Config) { c.Slot = "" },
		"impossible slot":    func(c *postgres.Config) { c.Slot = "Slot" },
		"no publications":    func(c *postgres.Config) { c.Publications = nil },
		"no check":           func(c *postgres.Config) { c.Check = nil },
		"no metrics":         func(c *postgres.Config) { c.Metrics = nil },
		"negative durations": func(c *postgres.Config) { c.BackoffMax = -time.Second },
	} {
		cfg := good
		spoil(&cfg)
		_, err := postgres.New(cfg)
		require.Error(t, err, name)
	}
	_, err = postgres.NewUpstream("")
	require.Error(t, err)
	_, err = postgres.NewUpstream("postgres://u:secret@host:port/d")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
}
