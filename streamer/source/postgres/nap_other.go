//go:build !linux

package postgres

import "net"

// socket can do nothing here.
type socket struct{}

func newSocket(net.Conn) socket { return socket{} }

func (socket) until(int) {}

func (socket) waiting() bool { return false }
