// Package qemu boots a real virtual machine as a sandbox: q35 with the
// distribution's kernel, no network device, one virtio-serial port, a read-only
// disk, and QEMU itself confined by its seccomp filter, an unprivileged user and
// a cgroup.
//
// After the boot the guest is paused and becomes golden: its memory and its
// devices' state lie in sealed memfds. Every instance that runs, the first one
// included, is a fresh QEMU restored from them.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

// Name is the backend's stable name.
const Name = "qemu"

// limits of the steps that wait for a guest or for QEMU.
type timeouts struct {
	boot    time.Duration // a kernel to a ready agent
	restore time.Duration // a snapshot to a ready agent
	qmp     time.Duration // QEMU's own answers
	settle  time.Duration // a source of the verification, twice
}

func defaultTimeouts() timeouts {
	return timeouts{boot: 60 * time.Second, restore: 15 * time.Second, qmp: 10 * time.Second, settle: integrity.TSettling}
}

// Sandbox is one virtual machine.
type Sandbox struct {
	o     backends.Options
	leaks leaks
	log   *slog.Logger
	t     timeouts

	op chan struct{} // holds a token; taken by Boot, Reset, Shutdown

	mu    sync.Mutex
	state backends.State
	cur   *vm // the instance that runs, nil while there is none
	r     *run
	hooks hooks
	frame time.Duration
	calls map[string]int // how often a flaky thing was asked for
	used  bool           // a tool was asked for since the last restore
}

// run is what belongs to one boot. Its fields are set during the boot and only
// read after it, save those that say otherwise.
type run struct {
	dir    string
	dirRec *ledger.Entry
	runs   int // QEMUs started so far; under op
	group  *fuse.Group

	qemu, version, accel string
	memMiB               int64
	manifest             image.Manifest
	agentSHA256          string
	digests              map[string]string
	kernel, initramfs    *os.File
	rootfs               *os.File
	rootfsPath           string
	shareDir             *os.File
	baselineKind         string

	ram, dev  *golden   // under op
	displaced []*golden // replaced by a tamper; under op
	goldHash  string
	epoch     string
	bootID    string

	reaping sync.WaitGroup // old instances on their way out
	reapMu  sync.Mutex
	reapErr error
}

// New makes a sandbox that is not booted. It touches nothing on the host.
func New(o backends.Options) (backends.Sandbox, error) {
	s, err := newSandbox(o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func newSandbox(o backends.Options) (*Sandbox, error) {
	l, err := parseLeaks(o.Leaks)
	if err != nil {
		return nil, err
	}
	if o.Limits.MemoryBytes < 0 || o.Limits.Pids < 0 {
		return nil, fmt.Errorf("qemu: negative limits %+v", o.Limits)
	}
	if o.Limits.MemoryBytes == 0 {
		o.Limits.MemoryBytes = defaultLimits().MemoryBytes
	}
	if o.Limits.Pids == 0 {
		o.Limits.Pids = defaultLimits().Pids
	}
	s := &Sandbox{o: o, leaks: l, log: o.Log, t: defaultTimeouts(), op: make(chan struct{}, 1), state: backends.StateNotBooted, calls: map[string]int{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.op <- struct{}{}
	return s, nil
}

func defaultLimits() backends.Limits { return backends.Limits{MemoryBytes: 256 << 20, Pids: 128} }

// Backend returns "qemu".
func (s *Sandbox) Backend() string { return Name }

// State reports where the instance is in its life.
func (s *Sandbox) State() backends.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *Sandbox) setState(st backends.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = st
}

func (s *Sandbox) lock(ctx context.Context) (unlock func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-s.op:
		return func() { s.op <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Boot starts the guest, takes the golden snapshot and returns once an instance
// restored from it has said hello.
func (s *Sandbox) Boot(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if s.State() == backends.StateReady {
		return nil
	}
	if err := s.teardown(); err != nil {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "clear the last instance away", Err: err}
	}
	r, err := s.preflight(ctx)
	if err != nil {
		s.setState(backends.StateNotBooted)
		return err
	}
	s.mu.Lock()
	s.state, s.r = backends.StateBooting, r
	s.mu.Unlock()
	if err := s.boot(ctx); err != nil {
		err = errors.Join(err, s.teardown())
		s.setState(backends.StateFailed)
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "boot qemu", Err: err, Fix: backends.FixOf(err)}
	}
	s.setState(backends.StateReady)
	return nil
}

// Execute runs one tool in the guest.
func (s *Sandbox) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	v, err := s.ready()
	if err != nil {
		return backends.Execution{}, err
	}
	if inv.Tool == "noop" && s.fails(leakFlakyNoop) {
		return backends.Execution{}, backends.Errorf(backends.ErrToolError, "run noop", "it fails once in %d", flakyEvery)
	}
	s.mu.Lock()
	s.used = true
	s.mu.Unlock()
	start := time.Now()
	var ex backends.Execution
	err = v.during(ctx, func(ctx context.Context) error {
		ex, err = v.client.Execute(ctx, inv)
		return err
	})
	switch {
	case err == nil:
		return s.promote(ex), nil
	case errors.Is(err, guest.ErrUnconfirmed):
		deadline := inv.Deadline
		if deadline == 0 {
			deadline = backends.DefaultDeadline
		}
		kerr := v.process.kill()
		s.fail(v)
		return ex, errors.Join(&backends.ToolTimeoutError{Tool: inv.Tool, ID: inv.ID, Deadline: deadline, Elapsed: time.Since(start), SandboxKilled: true}, kerr)
	case v.exited():
		s.fail(v)
		return ex, &backends.Error{Code: backends.ErrClosed, Doing: "run " + inv.Tool, Err: fmt.Errorf("%w; console: %s", err, v.console.tail(4)),
			Fix: "boot a fresh sandbox"}
	}
	return ex, err
}

// ready returns the running instance.
func (s *Sandbox) ready() (*vm, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != backends.StateReady || s.cur == nil {
		return nil, backends.Errorf(backends.ErrToolError, "use the qemu sandbox", "it is %s, not ready", s.state)
	}
	if s.cur.exited() {
		s.state = backends.StateFailed
		return nil, &backends.Error{Code: backends.ErrClosed, Doing: "use the qemu sandbox", Err: s.cur.death(), Fix: "boot a fresh sandbox"}
	}
	return s.cur, nil
}

// fail records that v is dead, unless another instance has replaced it.
func (s *Sandbox) fail(v *vm) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == v && s.state == backends.StateReady {
		s.state = backends.StateFailed
	}
}

// Shutdown ends everything and removes it from the host.
func (s *Sandbox) Shutdown(ctx context.Context) error {
	// Leaving things behind because the caller is in a hurry is no option: the
	// kill itself is bounded.
	unlock, err := s.lock(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer unlock()
	err = s.teardown()
	s.setState(backends.StateNotBooted)
	if err != nil {
		return fmt.Errorf("shut qemu down: %w", err)
	}
	return nil
}

// teardown ends the present instance, waits for the old ones and removes the
// run directory. It is called under op.
func (s *Sandbox) teardown() error {
	s.mu.Lock()
	v, r := s.cur, s.r
	s.cur, s.r, s.hooks = nil, nil, hooks{}
	s.mu.Unlock()
	var errs []error
	if v != nil {
		errs = append(errs, v.kill())
	}
	if r == nil {
		return errors.Join(errs...)
	}
	r.reaping.Wait()
	errs = append(errs, r.reapErr)
	if r.group != nil {
		errs = append(errs, r.group.Close())
	}
	for _, f := range []*os.File{r.kernel, r.initramfs, r.rootfs, r.shareDir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	for _, g := range append(r.displaced, r.ram, r.dev) {
		errs = append(errs, g.close())
	}
	if r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir), r.dirRec.Done())
	}
	return errors.Join(errs...)
}

// reap ends an old instance off the measured path.
func (r *run) reap(v *vm) {
	r.reaping.Go(func() {
		if err := v.kill(); err != nil {
			r.reapMu.Lock()
			r.reapErr = errors.Join(r.reapErr, err)
			r.reapMu.Unlock()
		}
	})
}

// credential is what QEMU runs as; nil is the harness's own user.
func (s *Sandbox) credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	c := identity()
	cred := &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.GID)}
	if s.r.accel == accelKVM {
		if st, err := os.Stat(kvmDevice); err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				cred.Groups = []uint32{sys.Gid}
			}
		}
	}
	return cred
}

// takeUsed reports whether a tool was asked for since it last did.
func (s *Sandbox) takeUsed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	used := s.used
	s.used = false
	return used
}

// flakyEvery is how often something flaky fails.
const flakyEvery = 3

// fails counts the uses of a flaky thing and says when it is its turn.
func (s *Sandbox) fails(leak string) bool {
	if !s.leaks[leak] {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[leak]++
	return s.calls[leak]%flakyEvery == 0
}
