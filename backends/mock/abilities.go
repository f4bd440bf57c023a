package mock

import (
	"context"
	"net/netip"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// HostAddresses is the host's loopback: the mock's world has no other.
func (s *Sandbox) HostAddresses() []backends.HostAddress { return loopback() }

func loopback() []backends.HostAddress {
	a := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return []backends.HostAddress{{Guest: a, Host: a, Via: "loopback"}}
}

// Usage is the simulated meter.
func (s *Sandbox) Usage(context.Context) (backends.Usage, error) {
	inst, err := s.ready("read the meter")
	if err != nil {
		return backends.Usage{}, err
	}
	return inst.world.usage(), nil
}

// HostPIDs is empty: nothing of the simulated world is a process.
func (s *Sandbox) HostPIDs(context.Context) ([]int, error) { return nil, nil }

// InsideIsHost is false: the world has processes of its own, simulated ones.
func (s *Sandbox) InsideIsHost() bool { return false }

// Tap passes on the raw bytes that the agent sends.
func (s *Sandbox) Tap(fn func(b []byte)) (stop func()) {
	inst, err := s.ready("tap the channel")
	if err != nil {
		return func() {}
	}
	return inst.client.Tap(fn)
}

// Inject writes raw bytes to the agent.
func (s *Sandbox) Inject(ctx context.Context, b []byte) error {
	inst, err := s.ready("write to the channel")
	if err != nil {
		return err
	}
	return inst.client.Inject(ctx, b)
}

// Resync opens a new session with the agent.
func (s *Sandbox) Resync(ctx context.Context) error {
	inst, err := s.ready("open a new session")
	if err != nil {
		return err
	}
	return inst.client.Resync(ctx)
}

// SetFrameTimeout applies to the next session.
func (s *Sandbox) SetFrameTimeout(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frameTimeout = d
	if s.inst != nil {
		s.inst.client.SetFrameTimeout(d)
	}
}

// Render is the leak of class A7: output is passed on raw. Without the leak the
// mock renders nothing itself.
func (s *Sandbox) Render(_ string, t backends.Text) (string, bool) {
	if !s.leaks.has(leakRenderer) {
		return "", false
	}
	return string(t.Bytes()), true
}

// OpenTarget is the same world without a boundary.
func (s *Sandbox) OpenTarget(ctx context.Context) (backends.Executor, func() error, error) {
	inst, err := start(ctx, newWorld(s.o.Limits, leaks{open: true}), 0, s.log)
	if err != nil {
		return nil, nil, err
	}
	return &openTarget{inst}, func() error { inst.stop(); return nil }, nil
}

// openTarget is the executor of a control.
type openTarget struct{ *instance }

var (
	_ backends.Executor      = (*openTarget)(nil)
	_ backends.Metered       = (*openTarget)(nil)
	_ backends.HostProcesses = (*openTarget)(nil)
	_ backends.ChannelTapper = (*openTarget)(nil)
)

func (t *openTarget) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	return t.client.Execute(ctx, inv)
}
func (t *openTarget) Usage(context.Context) (backends.Usage, error) { return t.world.usage(), nil }
func (t *openTarget) HostPIDs(context.Context) ([]int, error)       { return nil, nil }
func (t *openTarget) InsideIsHost() bool                            { return false }
func (t *openTarget) Tap(fn func(b []byte)) (stop func())           { return t.client.Tap(fn) }
func (t *openTarget) Inject(ctx context.Context, b []byte) error    { return t.client.Inject(ctx, b) }
func (t *openTarget) Resync(ctx context.Context) error              { return t.client.Resync(ctx) }
