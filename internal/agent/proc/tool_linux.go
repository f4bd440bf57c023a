package proc

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// RunTool runs fn as the first process of a call and returns its exit code.
//
// The process becomes a child subreaper, so that orphans of the tool's tree
// stay below it and attributable, and reaps them, so that they do not fill the
// pid limit. It must not reap what fn itself starts and waits for: therefore it
// has to be called on the process's first thread, to which the kernel gives
// orphans, with the goroutine locked to it, and waits for that thread's
// children only.
func RunTool(fn func() int) (int, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, os.NewSyscallError("become child subreaper", err)
	}
	// Where memory runs out, the tool goes and the agent stays to say so. The
	// tool's children inherit it.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	reserveThreads()
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	done := make(chan int, 1)
	go func() { done <- fn() }()
	for {
		select {
		case code := <-done:
			return code, nil
		case <-chld:
			reapThread()
		}
	}
}

// reapThread reaps the dead children of the calling thread.
func reapThread() {
	if unix.Gettid() != os.Getpid() {
		return
	}
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WNOTHREAD, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
