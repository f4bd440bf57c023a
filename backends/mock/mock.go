// Package mock is a backend without a sandbox. The real serve loop of the agent
// runs in this process, behind a pipe and the real guest client, in front of a
// simulated world with a tool table of its own.
//
// It exists so that the harness can be exercised anywhere, without privileges
// and in milliseconds. It is no boundary and never claims to be one: its tools
// report that they were refused because they were written to. With a leak they
// really do the benign crossing, so that every witness can be seen to fire.
package mock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
)

// Name is the backend's name.
const Name = "mock"

// grace is how long past a deadline the agent may take; it is in this process.
const grace = 500 * time.Millisecond

// Sandbox is the mock.
type Sandbox struct {
	o     backends.Options
	leaks leaks
	log   *slog.Logger

	life chan struct{} // holds a token; taken by Boot, Reset and Shutdown

	mu           sync.Mutex
	state        backends.State
	inst         *instance
	frameTimeout time.Duration
	tampers      *substrateTampers
	boots        int
}

var (
	_ backends.Sandbox       = (*Sandbox)(nil)
	_ backends.HostAddresser = (*Sandbox)(nil)
	_ backends.Metered       = (*Sandbox)(nil)
	_ backends.HostProcesses = (*Sandbox)(nil)
	_ backends.ChannelTapper = (*Sandbox)(nil)
	_ backends.FrameTimer    = (*Sandbox)(nil)
	_ backends.Tamperable    = (*Sandbox)(nil)
	_ backends.Controlled    = (*Sandbox)(nil)
	_ backends.Renderer      = (*Sandbox)(nil)
)

func newSandbox(o backends.Options) (*Sandbox, error) {
	l, err := parseLeaks(o.Leaks)
	if err != nil {
		return nil, err
	}
	if o.RequireBaseline {
		return nil, errors.New("the mock has no persisted baseline; fix: leave out --require-baseline, or choose a real backend")
	}
	if o.Limits.MemoryBytes == 0 {
		o.Limits.MemoryBytes = defaultLimits.MemoryBytes
	}
	if o.Limits.Pids == 0 {
		o.Limits.Pids = defaultLimits.Pids
	}
	s := &Sandbox{o: o, leaks: l, log: o.Log, life: make(chan struct{}, 1), state: backends.StateNotBooted}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.life <- struct{}{}
	return s, nil
}

// Backend returns "mock".
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

// take begins a change of life; the caller gives the token back.
func (s *Sandbox) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case <-s.life:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Sandbox) give() { s.life <- struct{}{} }

// Boot starts the agent in a fresh world and records the baseline.
func (s *Sandbox) Boot(ctx context.Context) error {
	const doing = "boot the mock"
	if err := s.take(ctx); err != nil {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: doing, Err: err}
	}
	defer s.give()
	switch st := s.State(); st {
	case backends.StateReady:
		return nil
	case backends.StateNotBooted:
	default:
		return &backends.Error{Code: backends.ErrBootFailed, Doing: doing, Err: fmt.Errorf("it is %s", st), Fix: "shut it down first"}
	}
	s.mu.Lock()
	s.state = backends.StateBooting
	s.boots++
	fails := s.leaks.lat && s.boots%latEvery == 0
	timeout := s.frameTimeout
	s.mu.Unlock()
	var inst *instance
	err := errors.New("the leak lat-fail fails this boot")
	if !fails {
		inst, err = start(ctx, newWorld(s.o.Limits, s.leaks), timeout, s.log)
	}
	if err != nil {
		s.setState(backends.StateNotBooted)
		return &backends.Error{Code: backends.ErrBootFailed, Doing: doing, Err: err}
	}
	s.mu.Lock()
	s.inst, s.state = inst, backends.StateReady
	s.tampers = newTampers(inst)
	s.mu.Unlock()
	return nil
}

// ready returns the instance, or why there is none to use.
func (s *Sandbox) ready(doing string) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != backends.StateReady {
		return nil, &backends.Error{Code: backends.ErrClosed, Doing: doing, Err: fmt.Errorf("the sandbox is %s, not ready", s.state)}
	}
	return s.inst, nil
}

// Execute runs one tool of the mock's table.
func (s *Sandbox) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	inst, err := s.ready("run a tool")
	if err != nil {
		return backends.Execution{}, err
	}
	if inv.Deadline <= 0 {
		inv.Deadline = backends.DefaultDeadline
	}
	began := time.Now()
	e, err := inst.client.Execute(ctx, inv)
	switch {
	case errors.Is(err, guest.ErrUnconfirmed):
		s.fail(inst)
		inst.stop()
		return e, &backends.ToolTimeoutError{Tool: inv.Tool, ID: inv.ID, Deadline: inv.Deadline, Elapsed: time.Since(began), SandboxKilled: true}
	case err != nil && inst.dead():
		s.fail(inst)
	}
	return e, err
}

// fail marks the sandbox failed if inst is still its instance.
func (s *Sandbox) fail(inst *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inst == inst && s.state != backends.StateNotBooted {
		s.state = backends.StateFailed
	}
}

// Shutdown ends the agent and forgets the world.
func (s *Sandbox) Shutdown(ctx context.Context) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	s.mu.Lock()
	inst := s.inst
	s.inst, s.tampers, s.state = nil, nil, backends.StateNotBooted
	s.mu.Unlock()
	if inst != nil {
		inst.stop()
	}
	return nil
}
