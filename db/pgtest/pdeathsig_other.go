//go:build unix && !linux

package pgtest

import "syscall"

// endWithParent does nothing here: only Linux can tie a process to its parent, so
// a killed program leaves its server running.
func endWithParent(*syscall.SysProcAttr) {}
