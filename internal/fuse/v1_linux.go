package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// v1 is a pair of cgroups, one per controller.
type v1 struct{ ownMem, ownPids, mem, pid string }

func newV1(ownMem, ownPids, name string) kernel {
	return &v1{ownMem: ownMem, ownPids: ownPids, mem: filepath.Join(ownMem, name), pid: filepath.Join(ownPids, name)}
}

func (g *v1) dirs() []string { return []string{g.mem, g.pid} }

func (g *v1) limit(l Limits) error {
	if l.MemoryBytes > 0 {
		n := strconv.FormatInt(l.MemoryBytes, 10)
		if err := writeFile(filepath.Join(g.mem, "memory.limit_in_bytes"), n); err != nil {
			return fmt.Errorf("limit memory: %w", err)
		}
		// Where swap is accounted it must not stretch the limit.
		if err := writeFile(filepath.Join(g.mem, "memory.memsw.limit_in_bytes"), n); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("limit memory and swap: %w", err)
		}
	}
	if l.Pids > 0 {
		if err := writeFile(filepath.Join(g.pid, "pids.max"), strconv.Itoa(l.Pids)); err != nil {
			return fmt.Errorf("limit tasks: %w", err)
		}
	}
	return nil
}

func (g *v1) add(pid int) error {
	for _, dir := range g.dirs() {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return err
		}
	}
	return nil
}

func (g *v1) pids() ([]int, error) { return readPIDs(filepath.Join(g.pid, "cgroup.procs")) }

func (g *v1) usage() (backends.Usage, error) {
	u := backends.Usage{Method: "cgroup v1 memory.usage_in_bytes"}
	var err [6]error
	var tasks int64
	u.MemoryBytes, err[0] = readInt(filepath.Join(g.mem, "memory.usage_in_bytes"))
	u.PeakBytes, err[1] = readInt(filepath.Join(g.mem, "memory.max_usage_in_bytes"))
	u.Kills, err[2] = readKey(filepath.Join(g.mem, "memory.oom_control"), "oom_kill")
	tasks, err[3] = readInt(filepath.Join(g.pid, "pids.current"))
	u.Refusals, err[4] = readKey(filepath.Join(g.pid, "pids.events"), "max")
	u.Tasks = int(tasks)
	pids, e := g.pids()
	u.CPUTime, err[5] = cpuTime(pids), e
	return u, errors.Join(err[:]...)
}

// killAll forbids forks first, so that the members found then are all there
// will ever be, and waits for each through a pidfd.
func (g *v1) killAll(ctx context.Context) error {
	if err := writeFile(filepath.Join(g.pid, "pids.max"), "0"); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return killMembers(ctx, g.pids)
}

// start moves the calling thread, not the process, into the cgroups, forks
// from it, and moves it back: a v1 cgroup holds threads, and a child begins
// where the thread that forked it is.
func (g *v1) start(cmd *exec.Cmd) error {
	return onSideThread(func() (err error) {
		tid := strconv.Itoa(unix.Gettid())
		back := func(dir string) {
			err = errors.Join(err, writeFile(filepath.Join(dir, "tasks"), tid))
		}
		if err := writeFile(filepath.Join(g.mem, "tasks"), tid); err != nil {
			return fmt.Errorf("enter the memory fuse: %w", err)
		}
		defer back(g.ownMem)
		if err := writeFile(filepath.Join(g.pid, "tasks"), tid); err != nil {
			return fmt.Errorf("enter the pids fuse: %w", err)
		}
		defer back(g.ownPids)
		return cmd.Start()
	})
}

func (g *v1) sysProcAttr(*syscall.SysProcAttr) (func(), error) { return func() {}, nil }

// onSideThread runs f locked to a thread that is not the process's first: the
// memory of a process is charged to where its first thread is. The thread is
// given back afterwards, not ended, because a child's parent-death signal is
// tied to the thread that forked it.
func onSideThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() {
			done <- onSideThread(f) // this thread is held, so the next is another
			return
		}
		done <- f()
	}()
	return <-done
}

// killMembers kills until pids is empty.
func killMembers(ctx context.Context, pids func() ([]int, error)) error {
	for {
		left, err := pids()
		if err != nil {
			if gone(err) {
				return nil
			}
			return err
		}
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			if err := killOne(ctx, pid); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%d members left: %w", len(left), err)
		}
	}
}

func killOne(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // gone, or a thread of somebody
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pid %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill pid %d: %w", pid, err)
	}
	return pollUntil(ctx, fd, unix.POLLIN)
}

// pollUntil waits for events on fd, or for ctx.
func pollUntil(ctx context.Context, fd int, events int16) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int((50 * time.Millisecond).Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
