package wire_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/streamer/wire"
)

const query = "id=i&taskID=t&replicaVersion=r&watermark=00"

func TestPathsThatAreTaken(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, base, path string
		action           wire.Action
	}{
		{name: "no base", path: "/replication/v6/changes", action: wire.Changes},
		{name: "any base", path: "/api/replication/v6/changes", action: wire.Changes},
		{name: "a reservation", path: "/api/replication/v6/snapshot", action: wire.Snapshot},
		{name: "a base like a worker", path: "/replication/replication/v6/changes", action: wire.Changes},
		{name: "an escaped base", path: "/%2F/replication/v6/changes", action: wire.Changes},
		{name: "the base", base: "shop", path: "/shop/replication/v6/changes", action: wire.Changes},
		{name: "none in place of the base", base: "shop", path: "/replication/v6/changes", action: wire.Changes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			rules := wire.Rules{Base: tt.base}
			r, err := rules.Parse(tt.path, query)
			require.NoError(t, err)
			require.Equal(t, 6, r.Version)
			require.Equal(t, tt.action, r.Action)
			require.True(t, rules.IsPath(tt.path))
		})
	}
}

func TestPathsThatAreRefused(t *testing.T) {
	t.Parallel()

	tests := []struct {
		name, base, path, query string
		code                    int // 1002 if zero
		want                    string
	}{
		{name: "nothing", path: "", want: "Error: Invalid URL: "},
		{name: "root", path: "/", want: "Error: Invalid URL: /"},
		{name: "with the query", path: "/x", query: "a=b&c", want: "Error: Invalid URL: /x?a=b&c"},
		{name: "fewer segments", path: "/replication/v6", want: "Error: Invalid URL: /replication/v6"},
		{name: "more segments", path: "/a/b/replication/v6/changes", want: "Error: Invalid URL: /a/b/replication/v6/changes"},
		{name: "slash before", path: "//replication/v6/changes", want: "Error: Invalid URL: //replication/v6/changes"},
		{name: "slash behind", path: "/replication/v6/changes/", want: "Error: Invalid URL: /replication/v6/changes/"},
		{name: "slash in place of the action", path: "/replication/v6/", want: "Error: Invalid URL: /replication/v6/"},
		{name: "no slash", path: "x/replication/v6/changes", want: "Error: Invalid URL: x/replication/v6/changes"},
		{name: "no version", path: "/replication/v/changes", want: "Error: Invalid URL: /replication/v/changes"},
		{name: "another letter", path: "/replication/6/changes", want: "Error: Invalid URL: /replication/6/changes"},
		{name: "unknown worker", path: "/poke/v6/changes", want: "Error: Invalid URL: /poke/v6/changes"},
		{name: "worker in capitals", path: "/Replication/v6/changes", want: "Error: Invalid URL: /Replication/v6/changes"},
		{
			name: "another base", base: "shop", path: "/shop2/replication/v6/changes", query: "id=x",
			want: "Error: Invalid URL: /shop2/replication/v6/changes?id=x",
		},
		{name: "escaped base", base: "shop", path: "/sho%70/replication/v6/changes", want: "Error: Invalid URL: /sho%70/replication/v6/changes"},
		{name: "sync", path: "/sync/v1/connect", want: "Error: Received a sync request with no sync workers."},
		{name: "sync with a base", path: "/api/sync/v0/connect", want: "Error: Received a sync request with no sync workers."},
		{name: "mutate", path: "/mutate/v1/push", want: "Error: Received a mutate request with no mutator."},
		{name: "version of sync", path: "/sync/vx/connect", query: "a=b", want: "Error: Invalid version: /sync/vx/connect?a=b"},
		{name: "version of mutate", path: "/api/mutate/v1.5/push", want: "Error: Invalid version: /api/mutate/v1.5/push"},
		{name: "another action", path: "/replication/v6/tables", code: 1011, want: `invalid action "tables" received in handoff`},
		{
			name: "another action, whatever the version", path: "/api/replication/vx/chang%65s", code: 1011,
			want: `invalid action "chang%65s" received in handoff`,
		},
		{name: "version without a number", path: "/api/replication/vx/changes", want: "Error: invalid path: /api/replication/vx/changes"},
		{name: "signed version", path: "/replication/v+6/changes", want: "Error: invalid path: /replication/v+6/changes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()

			if tt.code == 0 {
				tt.code = wire.CloseProtocol
			}
			rules := wire.Rules{Base: tt.base}
			_, err := rules.Parse(tt.path, tt.query)
			var end *wire.Close
			require.ErrorAs(t, err, &end)
			require.Equal(t, &wire.Close{Code: tt.code, Reason: tt.want, Delay: true}, end)
			require.False(t, rules.IsPath(tt.path))
		})
	}
}

func TestNoTextHasAToken(t *testing.T) {
	t.Parallel()

	for _, query := range []string{"token=s3cr3t", "a=1&token=s3cr3t&b=2", "%74oken=s3cr3t", "token=a&token=s3cr3t", "to%6Ben=s3%63r3t&token=s3cr3t"} {
		for _, path := range []string{"/x", "/sync/vx/connect", "/sync/v1/connect", "/replication/v6/x", "/replication/v6/changes"} {
			_, err := wire.Parse(path, query)
			require.Error(t, err)
			require.NotContains(t, err.Error(), "s3")
		}
	}
	_, err := wire.Parse("/x", "a=1&token=s3cr3t&b=2")
	require.ErrorContains(t, err, "Error: Invalid URL: /x?a=1&token=xxxxx&b=2")
}

func TestToken(t *testing.T) {
	t.Parallel()

	for query, want := range map[string]string{
		"":                    "",
		"id=x":                "",
		"token=":              "",
		"token=a":             "a",
		"id=x&token=a%2Bb%3D": "a+b=",
		"token=a&token=b":     "a",
		"%74oken=a":           "a",
	} {
		require.Equal(t, want, wire.Token(query), query)
	}
}

func TestCheckBase(t *testing.T) {
	t.Parallel()

	for _, base := range []string{"shop", "a", "shop_0-x.y~", "sync", strings.Repeat("a", 63)} {
		require.NoError(t, wire.CheckBase(base))
	}
	for _, base := range []string{"", "/", "/shop", "a/b", "a b", "a%20", "ä", "a?", ".", "..", strings.Repeat("a", 64)} {
		require.Error(t, wire.CheckBase(base), base)
	}
}
