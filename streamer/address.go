package streamer

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strings"
)

// advertised returns the address under which subscribers reach a listener: the host it
// listens on, or, if that is every one, the preferred address of this machine.
func advertised(listener net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return "", fmt.Errorf("address %s: %w", listener, err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return net.JoinHostPort(host, port), nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network interfaces: %w", err)
	}
	var candidates []candidate
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return "", fmt.Errorf("addresses of %s: %w", i.Name, err)
		}
		for _, addr := range addrs {
			if ip, ok := addr.(*net.IPNet); ok {
				candidates = append(candidates, candidate{name: i.Name, ip: ip.IP})
			}
		}
	}
	return net.JoinHostPort(preferred(candidates).String(), port), nil
}

// ownerAddress returns an address as it stands in the log. Old subscribers know no scheme,
// so there is none unless TLS is spoken.
func ownerAddress(address string, secure bool) string {
	if rest, found := strings.CutPrefix(address, "ws://"); found {
		return rest // what is in front of us has said it
	}
	if secure && !strings.Contains(address, "://") {
		return "wss://" + address
	}
	return address
}

// local says that only this machine reaches a listener.
func local(listener net.Addr) bool {
	host, _, err := net.SplitHostPort(listener.String())
	return err == nil && net.ParseIP(host).IsLoopback()
}

// candidate is an address of this machine.
type candidate struct {
	name string // of its interface
	ip   net.IP
}

// preferred returns the address most likely to be reached from elsewhere: IPv4 before
// IPv6, interfaces named eth, then en, then others. Loopback if there is nothing else.
func preferred(candidates []candidate) net.IP {
	usable := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool {
		v4 := c.ip.To4() != nil
		return c.ip.IsLoopback() || c.ip.IsLinkLocalUnicast() || c.ip.IsMulticast() || (!v4 && c.ip.IsPrivate())
	})
	if len(usable) == 0 {
		return net.IPv4(127, 0, 0, 1)
	}
	rank := func(c candidate) int {
		switch {
		case strings.HasPrefix(c.name, "eth"):
			return 0
		case strings.HasPrefix(c.name, "en"):
			return 1
		}
		return 2
	}
	return slices.MinFunc(usable, func(a, b candidate) int {
		return cmp.Or(
			cmp.Compare(len(b.ip.To4()), len(a.ip.To4())), // 4 for IPv4, 0 for IPv6
			cmp.Compare(rank(a), rank(b)),
			strings.Compare(a.ip.String(), b.ip.String()),
		)
	}).ip
}
