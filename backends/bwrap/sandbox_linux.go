package bwrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

// Sandbox is one bubblewrap sandbox.
type Sandbox struct {
	o     backends.Options
	leaks leaks
	log   *slog.Logger

	op chan struct{} // holds a token; taken by Boot, Reset and Shutdown

	mu    sync.Mutex
	state backends.State
	cur   *instance
	r     *run
	frame time.Duration
	calls map[string]int // how often a flaky thing was asked for

	reaping sync.WaitGroup // old instances on their way out
	reapErr error          // under mu
}

// run is what belongs to one boot. It is set up during the boot; only tampers
// change it later, under the sandbox's mu.
type run struct {
	bwrap    program
	agentSum string
	root     rootfs
	base     integrity.Baseline
	kind     string // where base comes from
	hooks    hooks
	cleanups []func() error // for when no instance is left
}

// hooks are changes that tampers make behind the sandbox's back.
type hooks struct {
	state func(*instance) // done to an instance before its state is read
	fds   func(int) int   // what the guest answers
}

func newSandbox(o backends.Options) (*Sandbox, error) {
	l, err := parseLeaks(o.Leaks)
	if err != nil {
		return nil, err
	}
	if o.Limits.MemoryBytes < 0 || o.Limits.Pids < 0 || o.Limits.DiskBytes < 0 {
		return nil, fmt.Errorf("bwrap: negative limits %+v", o.Limits)
	}
	d := defaultLimits()
	if o.Limits.MemoryBytes == 0 {
		o.Limits.MemoryBytes = d.MemoryBytes
	}
	if o.Limits.Pids == 0 {
		o.Limits.Pids = d.Pids
	}
	if o.Limits.DiskBytes == 0 {
		o.Limits.DiskBytes = o.Limits.MemoryBytes / 4 // a tmpfs is memory
	}
	s := &Sandbox{o: o, leaks: l, log: o.Log, op: make(chan struct{}, 1), state: backends.StateNotBooted, calls: map[string]int{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.op <- struct{}{}
	return s, nil
}

// Backend returns "bwrap".
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

// Boot starts bubblewrap and returns once the agent in it has said hello.
func (s *Sandbox) Boot(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "boot bwrap", Err: err}
	}
	defer unlock()
	if s.State() == backends.StateReady {
		return nil
	}
	if err := s.teardown(ctx); err != nil {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "clear the last instance away", Err: err}
	}
	bin, err := preflight(s.o)
	if err == nil && s.leaks[leakTIOCSTI] {
		err = pushbackOff(legacyTIOCSTI)
	}
	if err != nil {
		s.setState(backends.StateNotBooted)
		return err
	}
	s.setState(backends.StateBooting)
	err = fmt.Errorf("it fails once in %d", flakyEvery)
	if !s.fails(leakFlakyBoot) {
		err = s.boot(ctx, bin)
	}
	if err == nil {
		s.setState(backends.StateReady)
		return nil
	}
	err = errors.Join(err, s.teardown(ctx))
	s.setState(backends.StateFailed)
	return &backends.Error{Code: backends.ErrBootFailed, Doing: "boot bwrap", Err: err, Fix: backends.FixOf(err)}
}

// Execute runs one tool inside.
func (s *Sandbox) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	v, err := s.ready("run " + inv.Tool)
	if err != nil {
		return backends.Execution{}, err
	}
	if inv.Tool == "noop" && s.fails(leakFlakyNoop) {
		return backends.Execution{}, backends.Errorf(backends.ErrToolError, "run noop", "it fails once in %d", flakyEvery)
	}
	begin := time.Now()
	e, err := v.client.Execute(ctx, inv)
	switch {
	case err == nil && v.ending.Load():
		return backends.Execution{}, backends.Errorf(backends.ErrClosed, "run "+inv.Tool, "the sandbox was ended during the call")
	case err == nil && s.leaks[leakStdoutFrames]:
		return promote(e), nil
	case errors.Is(err, guest.ErrUnconfirmed):
		deadline := inv.Deadline
		if deadline == 0 {
			deadline = backends.DefaultDeadline
		}
		s.fail(v)
		kerr := v.kill(ctx)
		return e, errors.Join(&backends.ToolTimeoutError{Tool: inv.Tool, ID: inv.ID, Deadline: deadline, Elapsed: time.Since(begin), SandboxKilled: true}, kerr)
	}
	return e, err
}

// ready returns the running instance.
func (s *Sandbox) ready(doing string) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != backends.StateReady || s.cur == nil {
		return nil, backends.Errorf(backends.ErrToolError, doing, "the bwrap sandbox is %s, not ready", s.state)
	}
	return s.cur, nil
}

// fail records that v is dead, unless another instance has replaced it.
func (s *Sandbox) fail(v *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == v && s.state == backends.StateReady {
		s.state = backends.StateFailed
	}
}

// watch marks the sandbox failed when its instance ends by itself.
func (s *Sandbox) watch(v *instance) {
	s.reaping.Go(func() {
		<-v.child.Exited()
		s.fail(v)
	})
}

// Shutdown ends everything and removes it from the host.
func (s *Sandbox) Shutdown(ctx context.Context) error {
	// Leaving things behind because the caller is in a hurry is no option; the
	// kill itself is bounded.
	ctx = context.WithoutCancel(ctx)
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	err = s.teardown(ctx)
	s.setState(backends.StateNotBooted)
	if err != nil {
		return fmt.Errorf("shut bwrap down: %w", err)
	}
	return nil
}

// teardown ends the present instance and waits for the old ones. It is called
// under op.
func (s *Sandbox) teardown(ctx context.Context) error {
	s.mu.Lock()
	v, r := s.cur, s.r
	s.cur, s.r = nil, nil
	if s.state == backends.StateReady {
		s.state = backends.StateFailed // calls in flight must not find it ready
	}
	s.mu.Unlock()
	var err error
	if v != nil {
		err = v.kill(ctx)
	}
	s.reaping.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	err = errors.Join(err, s.reapErr)
	s.reapErr = nil
	if r != nil {
		for _, clean := range r.cleanups {
			err = errors.Join(err, clean())
		}
	}
	return err
}

// reap ends an old instance off the measured path.
func (s *Sandbox) reap(v *instance) {
	s.reaping.Go(func() {
		if err := v.kill(context.Background()); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.reapErr = errors.Join(s.reapErr, err)
		}
	})
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

// identity is the host identity that bubblewrap runs with: ours, or nobody's
// where ours is root's. A sandbox that was set up by root would prove little.
func identity() backends.Credential {
	if os.Geteuid() == 0 {
		return backends.Credential{UID: insideUID, GID: insideGID}
	}
	return backends.Credential{UID: os.Geteuid(), GID: os.Getegid()}
}
