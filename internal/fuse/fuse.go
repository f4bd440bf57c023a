// Package fuse puts a kernel limit on memory and tasks around processes, so
// that a probe which exhausts them on purpose cannot harm the host, whatever
// the sandbox under test enforces or forgets.
//
// It uses cgroup v2 where a subtree with the memory and pids controllers is
// ours, else cgroup v1. A group lies below the harness's own cgroup, so limits
// that hold for the harness hold for the group too.
package fuse

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

// Limits bound a group. Zero means that the resource is metered, not bounded.
type Limits struct {
	MemoryBytes int64
	Pids        int
}

// ErrNoFuse is returned where this host gives us no cgroup to limit with. The
// error that wraps it carries the fix.
var ErrNoFuse = errors.New("no cgroup with memory and pids limits can be made")

const noFuseFix = "run as root, or under `systemd-run --user --scope -p Delegate=yes -- COMMAND`"

// killWait bounds the wait for killed processes to leave the group.
const killWait = 5 * time.Second

// kernel is what differs between the cgroup versions.
type kernel interface {
	dirs() []string
	limit(l Limits) error
	add(pid int) error
	pids() ([]int, error)
	usage() (backends.Usage, error)
	// killAll ends every member, also those that fork meanwhile.
	killAll(ctx context.Context) error
	// start starts cmd as a member from its first instruction on.
	start(cmd *exec.Cmd) error
	// launch starts cmd; enclose makes a member of everything that tree lists.
	launch(cmd *exec.Cmd) (enclose Enclose, err error)
	sysProcAttr(a *syscall.SysProcAttr) (release func(), err error)
}

// Group is one kernel limit around processes.
type Group struct {
	k     kernel
	looks sync.RWMutex // held, shared, while somebody looks for what was forked

	mu      sync.Mutex
	entries []*ledger.Entry
	closed  bool
}

// Available says whether a group can be made here, by making one.
func Available(ctx context.Context) error {
	g, err := New(ctx, "available", Limits{MemoryBytes: 64 << 20, Pids: 64}, nil)
	if err != nil {
		return err
	}
	return g.Close()
}

// New makes an empty group with the limits l. name appears in its path.
func New(ctx context.Context, name string, l Limits, led *ledger.Ledger) (*Group, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if l.MemoryBytes < 0 || l.Pids < 0 {
		return nil, fmt.Errorf("make fuse %s: negative limits %+v", name, l)
	}
	w, err := readWorld()
	if err != nil {
		return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "make fuse " + name, Err: errors.Join(ErrNoFuse, err), Fix: noFuseFix}
	}
	var errs []error
	for _, c := range w.candidates(unique(name)) {
		g, err := make1(c, l, led)
		if err == nil {
			return g, nil
		}
		errs = append(errs, err)
	}
	return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "make fuse " + name,
		Err: fmt.Errorf("%w: %w", ErrNoFuse, errors.Join(errs...)), Fix: noFuseFix}
}

func unique(name string) string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	clean := strings.Map(func(r rune) rune {
		if r == '/' || r == '.' || r < ' ' {
			return '-'
		}
		return r
	}, name)
	return "bsm-" + clean + "-" + hex.EncodeToString(b[:])
}

// make1 records and makes the directories of one candidate and sets its limits.
func make1(c candidate, l Limits, led *ledger.Ledger) (*Group, error) {
	if c.prepare != nil {
		if err := c.prepare(); err != nil {
			return nil, err
		}
	}
	g := &Group{k: c.k}
	for _, dir := range c.k.dirs() {
		e, err := led.Intend(ledger.KindCgroup, dir)
		if err == nil {
			g.entries = append(g.entries, e)
			err = os.Mkdir(dir, 0o755)
		}
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	if err := c.k.limit(l); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Add moves a running process into the group and makes it the kernel's first
// choice when the host itself is out of memory. Children that it forked before
// stay outside; see Start.
func (g *Group) Add(pid int) error {
	if err := g.k.add(pid); err != nil {
		return fmt.Errorf("put pid %d into the fuse: %w", pid, err)
	}
	return expendable(pid)
}

// Start starts cmd inside the group: it is a member before its first
// instruction, so nothing that it forks can be outside. With a nil group it
// just starts cmd.
func (g *Group) Start(cmd *exec.Cmd) error {
	if g == nil {
		return cmd.Start()
	}
	if err := g.k.start(cmd); err != nil {
		return err
	}
	return g.started(cmd)
}

// Enclose waits until everything that tree lists is a member of the group. It may
// be called again.
type Enclose func(tree func() ([]int, error)) error

// Launch is Start for a program that is trusted until enclose has returned: where
// the kernel cannot start a member (v1), cmd runs already while it is moved. To
// enter a v1 cgroup takes a grace period of the kernel, often longer than a
// sandbox takes to be set up.
func (g *Group) Launch(cmd *exec.Cmd) (enclose Enclose, err error) {
	if g == nil {
		return func(func() ([]int, error)) error { return nil }, cmd.Start()
	}
	if enclose, err = g.k.launch(cmd); err != nil {
		return nil, err
	}
	return enclose, g.started(cmd)
}

// started makes what was just started expendable.
func (g *Group) started(cmd *exec.Cmd) error {
	if err := expendable(cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), waitQuietly(cmd))
	}
	g.looks.RLock()
	go func() {
		defer g.looks.RUnlock()
		g.sacrifice()
	}()
	return nil
}

func waitQuietly(cmd *exec.Cmd) error {
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) {
		return err
	}
	return nil
}

// sacrifice makes what the first process forked meanwhile expendable as well.
// A process that cannot be adjusted is bounded by the group all the same.
func (g *Group) sacrifice() {
	done := map[int]bool{}
	for {
		pids, err := g.PIDs()
		if err != nil {
			return
		}
		fresh := false
		for _, pid := range pids {
			if !done[pid] {
				done[pid], fresh = true, true
				_ = expendable(pid)
			}
		}
		if !fresh {
			return
		}
	}
}

// expendable makes pid the first victim of a host-wide memory shortage. A
// process that is gone already needs no adjustment.
func expendable(pid int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// SysProcAttr makes a child that is started with a a member from its first
// instruction on, where the kernel can (v2). On v1 it changes nothing: use
// Start, or Add afterwards. release must be called once the child runs.
func (g *Group) SysProcAttr(a *syscall.SysProcAttr) (release func(), err error) {
	return g.k.sysProcAttr(a)
}

// PIDs lists the members, in the host's numbers.
func (g *Group) PIDs() ([]int, error) { return g.k.pids() }

// Usage reads the group's meters.
func (g *Group) Usage() (backends.Usage, error) { return g.k.usage() }

// Kill ends every member and returns once none is left. The group stays, with
// its meters; on v1 nothing can be forked in it any more.
func (g *Group) Kill(ctx context.Context) error {
	if err := g.k.killAll(ctx); err != nil {
		return fmt.Errorf("empty the fuse %s: %w", filepath.Base(g.k.dirs()[0]), err)
	}
	return nil
}

// Close kills what is left and removes the group. It is idempotent.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), killWait)
	defer cancel()
	err := g.Kill(ctx)
	g.looks.Lock()
	defer g.looks.Unlock()
	for _, dir := range g.k.dirs() {
		err = errors.Join(err, remove(ctx, dir))
	}
	if err != nil {
		return err // the ledger keeps its entries for reap
	}
	g.closed = true
	for _, e := range g.entries {
		err = errors.Join(err, e.Done())
	}
	return err
}

// remove retries while the last member is still on its way out of the kernel.
func remove(ctx context.Context, dir string) error {
	for {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Millisecond):
		}
	}
}
