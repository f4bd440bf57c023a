// Package proc runs a tool of the agent in a process tree of its own and makes
// sure that the whole tree is dead before the call is answered.
//
// What belongs to a call is decided by ancestry, which a tool cannot change:
// the tool's first process and the agent are both child subreapers, so a
// process that leaves its session, its group and its parent still hangs below
// one of them. A cgroup of the call's own, where one can be made, and a tag in
// the environment come on top.
package proc

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// TagEnv names the environment variable that marks a call's processes.
const TagEnv = "BSM_CALL"

// ChannelFD is the descriptor on which a tool finds the raw message channel.
const ChannelFD = 3

// selfExe is the agent's own executable, also after its file is gone.
const selfExe = "/proc/self/exe"

// A Runner starts tools and kills their trees. It reaps every child of its
// process, so a process has at most one and starts no others.
type Runner struct {
	cgroup string // parent of the calls' cgroups; empty when there is none

	mu    sync.Mutex // held while a child is forked, reaped or looked up
	mains map[int]*child
	fds   map[int]bool // open for calls in flight

	// steady is held, shared, by whoever has short-lived descriptors open, so
	// that OpenFDCount never sees one.
	steady sync.RWMutex

	chld chan os.Signal
	done chan struct{}
	// reserved is closed when the threads of the reserve are there.
	reserved chan struct{}
	idle     sync.WaitGroup
}

// A child is the first process of a call.
type child struct {
	pid    int
	exited chan struct{}
	status syscall.WaitStatus // valid after exited
	// alone says that the agent had no other child when this one was reaped:
	// then nothing of the tree can be left.
	alone bool
}

// New starts a Runner. With a cgroup v2 directory, calls get cgroups below it.
func New(cgroup string) (*Runner, error) {
	if _, err := os.Stat(selfExe); err != nil {
		return nil, fmt.Errorf("tools need /proc: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	r := &Runner{cgroup: cgroup, mains: map[int]*child{}, fds: map[int]bool{}, chld: make(chan os.Signal, 1), done: make(chan struct{}), reserved: make(chan struct{})}
	// The runtime's poller opens its descriptors at first use. It is used here,
	// so that the fd count does not move with the first call.
	p, q, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, _ = p.Close(), q.Close()
	go func() { // a busy host takes its time, which the first call waits for, not the hello
		defer close(r.reserved)
		reserveThreads()
	}()
	signal.Notify(r.chld, syscall.SIGCHLD)
	r.idle.Go(r.reapLoop)
	return r, nil
}

// threadReserve is how many threads a process of ours has before a tool runs.
const threadReserve = 8

// reserveThreads makes the runtime start threads now and keep them, in the agent
// and in the first process of each call. Later, when a fork bomb shares their
// pid limit, it could not, and it ends a program that needs a thread and gets
// none.
func reserveThreads() {
	var up, down sync.WaitGroup
	up.Add(threadReserve)
	release := make(chan struct{})
	for range threadReserve {
		down.Go(func() {
			runtime.LockOSThread() // a goroutine that keeps its thread while it waits
			defer runtime.UnlockOSThread()
			up.Done()
			<-release
		})
	}
	up.Wait()
	close(release)
	down.Wait()
}

// Close kills every descendant of the process and stops the Runner.
func (r *Runner) Close(ctx context.Context) error {
	err := r.killAll(ctx)
	signal.Stop(r.chld)
	close(r.done)
	r.idle.Wait()
	return err
}

func (r *Runner) reapLoop() {
	for {
		select {
		case <-r.chld:
			r.reap()
		case <-r.done:
			return
		}
	}
}

// reap collects every dead child and reports whether no child is left. What is
// no call's first process is an orphan of some tree and needs nothing more.
func (r *Runner) reap() (none bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ended []*child
	for {
		var st syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &st, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		none = errors.Is(err, syscall.ECHILD)
		if err != nil || pid <= 0 {
			break
		}
		if c := r.mains[pid]; c != nil {
			delete(r.mains, pid)
			c.status = st
			ended = append(ended, c)
		}
	}
	for _, c := range ended {
		c.alone = none
		close(c.exited)
	}
	return none
}

// Spawn is an agent.SpawnFunc.
func (r *Runner) Spawn(ctx context.Context, c agent.Call) (agent.Exit, error) {
	<-r.reserved
	deadline := time.NewTimer(c.Deadline)
	defer deadline.Stop()
	t, err := r.start(c)
	if err != nil {
		return agent.Exit{}, err
	}
	timedOut := false
	select {
	case <-t.child.exited:
	case <-deadline.C:
		timedOut = true
	case <-ctx.Done():
	}
	if c.KeepTree && ctx.Err() == nil {
		t.letGo()
		if timedOut {
			return agent.Exit{Code: wire.ExitKilled, TimedOut: true}, nil
		}
		return agent.Exit{Code: exitCode(t.child.status)}, nil
	}
	// Without a confirmed death there is no answer: the host then ends the
	// sandbox. The session's end does not stop the killing.
	err = t.kill(context.WithoutCancel(ctx))
	t.drain()
	switch {
	case ctx.Err() != nil:
		return agent.Exit{}, ctx.Err()
	case err != nil:
		return agent.Exit{}, err
	case timedOut:
		return agent.Exit{Code: wire.ExitKilled, TimedOut: true}, nil
	}
	return agent.Exit{Code: exitCode(t.child.status)}, nil
}

// exitCode follows the shell: 128 and the signal for a killed process.
func exitCode(st syscall.WaitStatus) int {
	if st.Signaled() {
		return 128 + int(st.Signal())
	}
	return st.ExitStatus()
}

// A tree is a call in flight.
type tree struct {
	r     *Runner
	child *child
	tag   string
	since uint64 // start time of the first process, in ticks since boot
	group *group
	pipes []pipe
	copys sync.WaitGroup
}

// A pipe is the agent's end of an output. The number is kept beside the file,
// because File.Fd may make it blocking.
type pipe struct {
	*os.File
	fd int
}

// newPipe returns the end to read, which obeys deadlines, and the end for the
// tool, which blocks as a program expects of its stdout.
func newPipe() (pipe, int, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return pipe{}, 0, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return pipe{}, 0, os.NewSyscallError("set nonblocking", err)
	}
	return pipe{os.NewFile(uintptr(fds[0]), "output"), fds[0]}, fds[1], nil
}

// start forks the tool with its parameters on stdin, in a process group of its
// own. A session of its own would take the sandbox's controlling terminal from
// the tool, and hide from P-A3 what the sandbox shares.
func (r *Runner) start(c agent.Call) (*tree, error) {
	var tag [16]byte
	_, _ = rand.Read(tag[:]) // never fails since Go 1.24
	t := &tree{r: r, tag: hex.EncodeToString(tag[:])}
	r.steady.RLock()
	defer r.steady.RUnlock()

	stdin, err := memfile(c.Params)
	if err != nil {
		return nil, fmt.Errorf("pass parameters: %w", err)
	}
	defer stdin.Close()
	files := []uintptr{stdin.Fd()}
	sinks := []io.Writer{c.Stdout, c.Stderr}
	if c.Channel != nil {
		sinks = append(sinks, c.Channel)
	}
	var ends []int
	fail := func(err error) (*tree, error) {
		for _, fd := range ends {
			_ = unix.Close(fd)
		}
		t.forget()
		return nil, err
	}
	for range sinks {
		p, q, err := newPipe()
		if err != nil {
			return fail(err)
		}
		t.pipes, ends = append(t.pipes, p), append(ends, q)
		files = append(files, uintptr(q))
	}
	sys := &syscall.SysProcAttr{Setpgid: true}
	if t.group = newGroup(r.cgroup, t.tag); t.group != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, t.group.fd
	}
	attr := &syscall.ProcAttr{Env: append(os.Environ(), TagEnv+"="+t.tag), Files: files, Sys: sys}
	r.mu.Lock()
	pid, err := syscall.ForkExec(selfExe, []string{"bsm-agent", "tool", c.Name}, attr)
	if err == nil {
		t.child = &child{pid: pid, exited: make(chan struct{})}
		r.mains[pid] = t.child
		t.since = startTime(pid)
		for _, fd := range t.held() {
			r.fds[fd] = true
		}
	}
	r.mu.Unlock()
	if err != nil {
		return fail(fmt.Errorf("start tool process: %w", err))
	}
	for i, fd := range ends {
		_ = unix.Close(fd)
		t.copys.Go(func() { _, _ = io.Copy(sinks[i], t.pipes[i]) })
	}
	return t, nil
}

// held are the descriptors that the call keeps open in the agent.
func (t *tree) held() []int {
	var fds []int
	for _, p := range t.pipes {
		fds = append(fds, p.fd)
	}
	if t.group != nil {
		fds = append(fds, t.group.fd)
	}
	return fds
}

// forget closes the call's descriptors and removes its cgroup.
func (t *tree) forget() {
	t.r.mu.Lock()
	for _, fd := range t.held() {
		delete(t.r.fds, fd)
	}
	for _, p := range t.pipes {
		_ = p.Close()
	}
	if t.group != nil {
		_ = unix.Close(t.group.fd)
	}
	t.r.mu.Unlock()
	if t.group != nil {
		t.group.remove()
	}
}

// drainGrace bounds the wait for output once the tree is dead. Only a process
// outside the tree that was handed the pipe can make it count.
const drainGrace = 50 * time.Millisecond

// drain copies what is left in the pipes and closes them.
func (t *tree) drain() {
	for _, p := range t.pipes {
		_ = p.SetReadDeadline(time.Now().Add(drainGrace))
	}
	t.copys.Wait()
	t.forget()
}

// letGo leaves the tree alone. Its pipes stay open and are read to their end,
// so that a survivor does not die of SIGPIPE. It returns when the output is
// complete, or soon after.
func (t *tree) letGo() {
	complete := make(chan struct{})
	go func() {
		t.copys.Wait()
		close(complete)
		t.forget()
	}()
	select {
	case <-complete:
	case <-time.After(drainGrace):
	}
}

// memfile holds params in memory, ready to be read.
func memfile(params []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("params", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "params")
	if _, err := f.WriteAt(params, 0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
