package payload

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forkSleeper forks a child that dies with the calling thread or after life,
// whichever comes first. The caller has blocked all signals and is locked to
// its thread. As in syscall.forkExec, the child may only make raw system calls:
// it has no Go runtime, so nothing here may grow the stack or allocate.
//
//go:norace
//go:nosplit
//go:noinline
func forkSleeper(life *unix.Timespec, parent uintptr) (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	// The parent may have died before the line above.
	if pp, _, _ := syscall.RawSyscall(unix.SYS_GETPPID, 0, 0, 0); pp == parent {
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(life)), 0, 0)
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}
