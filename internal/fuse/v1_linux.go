package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// v1 is a pair of cgroups, one per controller.
type v1 struct {
	ownMem, ownPids, mem, pid string

	visits sync.RWMutex // held, shared, by who moves a thread or a process of ours
	mu     sync.Mutex
	stuck  error // one of them could not leave
}

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

// pids lists the members. A thread of ours that could not leave is none.
func (g *v1) pids() ([]int, error) {
	g.vacate()
	pids, err := readPIDs(filepath.Join(g.pid, "cgroup.procs"))
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == os.Getpid() }), err
}

func (g *v1) usage() (backends.Usage, error) {
	u := backends.Usage{Method: "cgroup v1 memory.usage_in_bytes"}
	var err [6]error
	var tasks int64
	g.vacate()
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
	g.vacate()
	if err := writeFile(filepath.Join(g.pid, "pids.max"), "0"); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	err := killMembers(ctx, g.pids)
	g.mu.Lock()
	defer g.mu.Unlock()
	return errors.Join(err, g.stuck)
}

// vacate waits until what is being moved is where it belongs.
func (g *v1) vacate() {
	g.visits.Lock()
	defer g.visits.Unlock()
}

// start moves a thread, not the process, into the cgroups, forks from it, and
// moves it back: a v1 cgroup holds threads, and a child begins where the thread
// that forked it is. The way back, which can take the kernel milliseconds, is
// waited for by whoever looks at the members next.
func (g *v1) start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	g.visits.RLock()
	go func() {
		defer g.visits.RUnlock()
		onSideThread(func() {
			tid := strconv.Itoa(unix.Gettid())
			back := func(dir string) {
				if err := writeFile(filepath.Join(dir, "tasks"), tid); err != nil {
					g.mu.Lock()
					defer g.mu.Unlock()
					g.stuck = errors.Join(g.stuck, fmt.Errorf("take a thread of ours out of the fuse: %w", err))
				}
			}
			if err := writeFile(filepath.Join(g.mem, "tasks"), tid); err != nil {
				started <- fmt.Errorf("enter the memory fuse: %w", err)
				return
			}
			defer back(g.ownMem)
			if err := writeFile(filepath.Join(g.pid, "tasks"), tid); err != nil {
				started <- fmt.Errorf("enter the pids fuse: %w", err)
				return
			}
			defer back(g.ownPids)
			started <- cmd.Start()
		})
	}()
	return <-started
}

// launch has the first process moved while it runs; what it forked before that
// follows in enclose.
func (g *v1) launch(cmd *exec.Cmd) (Enclose, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	moved := make(chan struct{})
	var moving error
	g.visits.RLock()
	go func() {
		defer g.visits.RUnlock()
		defer close(moved)
		moving = g.add(cmd.Process.Pid)
	}()
	return func(tree func() ([]int, error)) error {
		if <-moved; moving != nil && !gone(moving) {
			return fmt.Errorf("enter the fuse: %w", moving)
		}
		return g.enclose(tree)
	}, nil
}

// encloseRounds bounds how often a tree is looked at. It stands still after a few
// unless it cannot be moved.
const encloseRounds = 100

// enclose moves what is outside until a look finds nothing there. What is forked
// after that has a parent inside.
func (g *v1) enclose(tree func() ([]int, error)) error {
	for range encloseRounds {
		pids, err1 := tree()
		inside, err2 := g.pids()
		memory, err3 := readPIDs(filepath.Join(g.mem, "cgroup.procs"))
		if err := errors.Join(err1, err2, err3); err != nil {
			return fmt.Errorf("enter the fuse: %w", err)
		}
		outside := slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(inside, pid) && slices.Contains(memory, pid) })
		if len(outside) == 0 {
			return nil
		}
		for _, pid := range outside {
			if err := g.add(pid); err != nil && !gone(err) {
				return fmt.Errorf("enter the fuse with pid %d: %w", pid, err)
			}
		}
	}
	return fmt.Errorf("enter the fuse: some of the processes are outside after %d attempts", encloseRounds)
}

func (g *v1) sysProcAttr(*syscall.SysProcAttr) (func(), error) { return func() {}, nil }

// onSideThread runs f locked to a thread that is not the process's first: the
// memory of a process is charged to where its first thread is. The thread is
// given back afterwards, not ended, because a child's parent-death signal is
// tied to the thread that forked it.
func onSideThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() {
			onSideThread(f) // this thread is held, so the next is another
			return
		}
		f()
	}()
	<-done
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
