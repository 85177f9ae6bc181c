package main

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// checkAddress says whether somebody may listen on an address, as far as can be told
// without trying.
func checkAddress(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil || port == "" {
		return fmt.Errorf("%s: %q is no address; want HOST:PORT, or :PORT for every interface", flag, address)
	}
	// A port may have a name; only the machine's own list is asked.
	if _, err := net.DefaultResolver.LookupPort(context.Background(), "tcp", port); err != nil {
		return fmt.Errorf("%s: %q is no port; want a number from 0 to 65535", flag, port)
	}
	return nil
}

// checkAdvertised says whether subscribers may be sent to an address.
func checkAdvertised(address string) error {
	const flag = "--advertise"
	if scheme, rest, found := strings.Cut(address, "://"); found {
		if scheme != "ws" && scheme != "wss" {
			return fmt.Errorf("%s: %q begins with neither ws:// nor wss://", flag, address)
		}
		address = rest
	}
	if err := checkAddress(flag, address); err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(address) // it has been split before
	if host == "" || port == "0" {
		return fmt.Errorf("%s: nobody can connect to %q; want HOST:PORT", flag, address)
	}
	return nil
}
