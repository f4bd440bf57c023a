package bwrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/open/child"
)

const (
	// startTimeout bounds the time from fork to hello.
	startTimeout = 20 * time.Second
	// killTimeout bounds the end of an instance.
	killTimeout = 15 * time.Second
)

// instance is one running bubblewrap with the agent in it.
type instance struct {
	child  *child.Child
	group  *fuse.Group // nil where this host has no fuse
	client *guest.Client
	tty    *terminal // nil without the leak
	init   int       // host pid of the first process inside
	pidns  string    // its pid namespace, as a /proc link reads
	// ending is set before the kill begins: what the agent answers from then on
	// tells of the kill, not of the tool.
	ending atomic.Bool
}

// launch starts an instance. After an error nothing is left of it.
func (s *Sandbox) launch(ctx context.Context, r *run) (_ *instance, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	v := &instance{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.kill(ctx))
		}
	}()
	if v.group, err = s.fuse(ctx); err != nil {
		return nil, err
	}
	sp := s.spec(r)
	id := identity()
	cs := child.Spec{Argv: []string{"bwrap"}, Credential: &id, Group: v.group, Trusted: true, Ledger: s.o.Ledger, Tag: child.NewTag()}
	var closers []io.Closer
	defer func() {
		for _, c := range closers {
			_ = c.Close() // bubblewrap has its own
		}
	}()
	if cs.Exe, err = os.Open(r.bwrap.path); err != nil {
		return nil, err
	}
	closers = append(closers, cs.Exe)
	infoR, infoW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	closers = append(closers, infoR, infoW)
	cs.ExtraFiles, sp.InfoFD = []*os.File{infoW}, 3
	if !s.leaks[leakNoSeccomp] {
		f, err := filterPipe(s.rules())
		if err != nil {
			return nil, err
		}
		closers = append(closers, f)
		cs.ExtraFiles, sp.SeccompFD = append(cs.ExtraFiles, f), 4
	}
	if s.leaks[leakTIOCSTI] {
		if v.tty, err = newTerminal(); err != nil {
			return nil, err
		}
		cs.ExtraFiles = append(cs.ExtraFiles, v.tty.slave)
		cs.Terminal = 2 + len(cs.ExtraFiles)
		sp.SyncFD = cs.Terminal // bubblewrap holds it and keeps it from the agent
	}
	if s.leaks[leakHostEnv] {
		cs.Env = os.Environ()
	}
	if s.leaks[leakSharePID] {
		sp.Env = append(sp.Env, [2]string{child.TagEnv, cs.Tag}) // no pid namespace ends the tree
	}
	cs.Argv = append(cs.Argv, sp.argv()...)
	if v.child, err = child.Start(cs); err != nil {
		return nil, err
	}
	_ = infoW.Close() // the other end of ours is bubblewrap's
	if err := v.connect(ctx, s, r, infoR); err != nil {
		return nil, fmt.Errorf("%w (stderr %s)", err, v.child.Stderr())
	}
	// Until the first call only bubblewrap and our agent run inside.
	if err := errors.Join(v.child.Enclose(), v.child.Recorded()); err != nil {
		return nil, err
	}
	return v, nil
}

// connect opens the session and learns who runs inside. The hello is waiting
// in the pipe before the agent runs, so nothing is polled.
func (v *instance) connect(ctx context.Context, s *Sandbox, r *run, info *os.File) (err error) {
	stop := context.AfterFunc(ctx, func() { _ = info.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var i struct {
		ChildPID int `json:"child-pid"`
	}
	b, err := io.ReadAll(io.LimitReader(info, 4096))
	if err != nil {
		return fmt.Errorf("read what bubblewrap says of its child: %w", errors.Join(context.Cause(ctx), err))
	}
	if err := json.Unmarshal(b, &i); err != nil || i.ChildPID <= 1 {
		select {
		case <-v.child.Exited():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "start bubblewrap", Err: fmt.Errorf("it ended before its child ran: %w", v.child.Status()), Fix: fixFor(v.child.Stderr().Bytes())}
	}
	// Early, so that most of it is done when the agent speaks.
	entered := make(chan error, 1)
	go func() { entered <- v.child.Enclose() }()
	defer func() { err = errors.Join(err, <-entered) }()
	s.mu.Lock()
	frame := s.frame
	s.mu.Unlock()
	v.client, err = guest.Connect(ctx, guest.Options{Dial: v.child.Dial, AgentSHA256: r.agentSum, FrameTimeout: frame,
		NoLimits: s.leaks[leakNoLimitsDecoder], Log: s.log})
	if err != nil {
		return err
	}
	v.init = i.ChildPID
	v.pidns, err = namespace(v.init, "pid")
	return err
}

// fuse makes the limits of an instance. On a host that gives us none the
// sandbox boots without; its meter and provenance say so.
func (s *Sandbox) fuse(ctx context.Context) (*fuse.Group, error) {
	l := fuse.Limits{MemoryBytes: s.o.Limits.MemoryBytes, Pids: s.o.Limits.Pids}
	if s.leaks[leakNoLimits] {
		// The declared limits are not kept; a wider fuse keeps the host safe
		// from a payload that stops itself at twice as much.
		l.MemoryBytes, l.Pids = 3*l.MemoryBytes, 4*l.Pids+128
	}
	g, err := fuse.New(ctx, Name, l, s.o.Ledger)
	if errors.Is(err, fuse.ErrNoFuse) && !s.leaks[leakNoLimits] {
		s.log.Warn("bwrap runs without memory and pids limits", "error", err)
		return nil, nil
	}
	return g, err
}

// spec describes the sandbox with its leaks.
func (s *Sandbox) spec(r *run) spec {
	sp := spec{
		RootFS: r.root.dir, TmpBytes: s.o.Limits.DiskBytes, KeepTree: s.leaks[leakKeepTree],
		ShareNet: s.leaks[leakShareNet], SharePID: s.leaks[leakSharePID], ShareIPC: s.leaks[leakShareIPC],
		HostRoot: s.leaks[leakHostRoot], HostRootRW: s.leaks[leakHostRootRW], HostEnv: s.leaks[leakHostEnv], KeepSession: s.leaks[leakTIOCSTI],
	}
	sp.Env = [][2]string{{"PATH", "/bin"}, {"LANG", "C"}, {"HOME", sp.writable()[0]}, {"TMPDIR", sp.writable()[0]}}
	return sp
}

// rules are those of the filter with its leaks.
func (s *Sandbox) rules() []rule {
	return slices.DeleteFunc(rules(), func(r rule) bool { return s.leaks[leakTIOCSTI] && r.name == "ioctl" })
}

// filterPipe holds the whole filter, ready to be read to its end.
func filterPipe(rules []rule) (*os.File, error) {
	p, err := filter(runtime.GOARCH, rules)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(encode(p)) // far less than a pipe holds
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// kill ends the instance and everything in it.
func (v *instance) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	v.ending.Store(true)
	var err error
	if v.child != nil {
		err = v.child.Kill(ctx)
	}
	if v.client != nil {
		_ = v.client.Close() // its stream is closed already
	}
	return errors.Join(err, v.tty.Close(), v.group.Close())
}

// state reads the runtime's state from the host's process table.
func (v *instance) state() (string, error) {
	if !v.child.Alive() {
		return integrity.StateStopped, nil
	}
	ns, err := namespace(v.init, "pid")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return integrity.StateStopped, nil
	case err != nil:
		return "", err
	case ns != v.pidns:
		return integrity.StateError, nil
	}
	for _, pid := range []int{v.child.PID(), v.init} {
		switch st, err := status(pid, "State"); {
		case errors.Is(err, os.ErrNotExist) || strings.HasPrefix(st, "Z") || strings.HasPrefix(st, "X"):
			return integrity.StateStopped, nil
		case err != nil:
			return "", err
		case strings.HasPrefix(st, "T") || strings.HasPrefix(st, "t"):
			return integrity.StatePaused, nil
		}
	}
	return integrity.StateRunning, nil
}

// agent finds the agent's host pid: the child of the first process inside, or,
// where there is no pid namespace and so no init, that process itself.
func (v *instance) agent() (int, error) {
	if host, err := namespace(os.Getpid(), "pid"); err != nil || host == v.pidns {
		return v.init, err
	}
	pids, err := child.Descendants(v.init)
	if err != nil {
		return 0, err
	}
	for _, pid := range slices.DeleteFunc(pids, func(p int) bool { return p == v.init }) {
		parent, err := status(pid, "PPid")
		if err == nil && parent == strconv.Itoa(v.init) {
			return pid, nil
		}
	}
	return 0, errors.New("no agent process was found")
}

// namespace reads the identity of a process's namespace.
func namespace(pid int, kind string) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
}

// status reads one line of /proc/PID/status, without its name.
func status(pid int, key string) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(v), " "), nil
		}
	}
	return "", fmt.Errorf("pid %d: no %s in its status", pid, key)
}
