package streamer

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPreferred(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		from map[string][]string
		want string
	}{
		{name: "nothing", want: "127.0.0.1"},
		{name: "loopback only", from: map[string][]string{"lo": {"127.0.0.1", "::1"}}, want: "127.0.0.1"},
		{name: "IPv4 before IPv6", from: map[string][]string{"eth0": {"2001:db8::1", "10.0.0.7"}}, want: "10.0.0.7"},
		{name: "eth before en", from: map[string][]string{"enp1s0": {"10.0.0.1"}, "eth0": {"10.0.0.2"}}, want: "10.0.0.2"},
		{name: "en before others", from: map[string][]string{"docker0": {"10.0.0.1"}, "enp1s0": {"10.0.0.2"}}, want: "10.0.0.2"},
		{name: "by address", from: map[string][]string{"eth0": {"10.0.0.9", "10.0.0.3"}}, want: "10.0.0.3"},
		{name: "private and link-local IPv6", from: map[string][]string{"eth0": {"fd00::1", "fe80::1"}}, want: "127.0.0.1"},
		{name: "public IPv6", from: map[string][]string{"eth0": {"fd00::1", "2001:db8::1"}}, want: "2001:db8::1"},
		{name: "link-local IPv4", from: map[string][]string{"eth0": {"169.254.1.1"}}, want: "127.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var candidates []candidate
			for name, addrs := range tt.from {
				for _, a := range addrs {
					candidates = append(candidates, candidate{name: name, ip: net.ParseIP(a)})
				}
			}
			require.Equal(t, tt.want, preferred(candidates).String())
		})
	}
}

func TestOwnerAddress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		address string
		secure  bool
		want    string
	}{
		{address: "h:1", want: "h:1"},
		{address: "h:1", secure: true, want: "wss://h:1"},
		{address: "[2001:db8::1]:4848", secure: true, want: "wss://[2001:db8::1]:4848"},
		{address: "wss://proxy:443", want: "wss://proxy:443"},
		{address: "wss://proxy:443", secure: true, want: "wss://proxy:443"},
		{address: "ws://proxy:80", want: "proxy:80"},
		{address: "ws://proxy:80", secure: true, want: "proxy:80"},
	} {
		require.Equal(t, tt.want, ownerAddress(tt.address, tt.secure), "%+v", tt)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true,
		"0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "[2001:db8::1]:1": false,
	} {
		addr, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		require.Equal(t, want, local(addr), address)
	}
}

func TestAdvertised(t *testing.T) {
	t.Parallel()
	tests := []struct {
		listen string
		want   string // empty: any host but an unspecified one
		port   string
	}{
		{listen: "127.0.0.1:4848", want: "127.0.0.1:4848"},
		{listen: "[::1]:4848", want: "[::1]:4848"},
		{listen: "[::]:4848", port: "4848"},
		{listen: "0.0.0.0:4849", port: "4849"},
	}
	for _, tt := range tests {
		t.Run(tt.listen, func(t *testing.T) {
			t.Parallel()
			addr, err := net.ResolveTCPAddr("tcp", tt.listen)
			require.NoError(t, err)
			got, err := advertised(addr)
			require.NoError(t, err)
			if tt.want != "" {
				require.Equal(t, tt.want, got)
				return
			}
			host, port, err := net.SplitHostPort(got)
			require.NoError(t, err)
			require.Equal(t, tt.port, port)
			require.False(t, net.ParseIP(host).IsUnspecified())
		})
	}
}
