package postgres

import (
	"net"
	"syscall"
)

// socket is what lies under a connection.
type socket struct{ raw syscall.RawConn } // nil: nothing that is known

func newSocket(conn net.Conn) socket {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS
		conn = wrapped.NetConn()
	}
	file, ok := conn.(syscall.Conn)
	if !ok {
		return socket{}
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return socket{}
	}
	return socket{raw: raw}
}

// until has the kernel tell nobody before n bytes can be read. A message that arrives
// wakes a thread of ours even if nobody waits for it, which costs the sender, too. Only
// TCP knows how to be quiet, a Unix socket tells all the same.
func (s socket) until(n int) {
	if s.raw == nil {
		return
	}
	_ = s.raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, n)
	})
}

// waiting says that something can be read at once.
func (s socket) waiting() (yes bool) {
	if s.raw == nil {
		return false
	}
	_ = s.raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return yes
}
