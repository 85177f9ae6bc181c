package pgtest

import "syscall"

// endWithParent makes the kernel end the server when this process ends, however.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
