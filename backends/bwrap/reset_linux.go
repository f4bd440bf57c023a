package bwrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Reset replaces the running instance by a fresh one from the immutable root
// file system and verifies it.
func (s *Sandbox) Reset(ctx context.Context) (backends.ResetState, error) {
	return s.ResetIgnoring(ctx)
}

// ResetIgnoring is Reset with the comparison of some sources switched off.
func (s *Sandbox) ResetIgnoring(ctx context.Context, off ...backends.Source) (backends.ResetState, error) {
	const doing = "reset bwrap"
	unlock, err := s.lock(ctx)
	if err != nil {
		return backends.ResetState{}, &backends.Error{Code: backends.ErrResetFailed, Doing: doing, Err: err}
	}
	defer unlock()
	old, err := s.ready(doing)
	if err != nil {
		return backends.ResetState{}, &backends.Error{Code: backends.ErrResetFailed, Doing: doing, Err: err, Fix: "boot a fresh sandbox"}
	}
	s.setState(backends.StateResetting)
	st, err := s.reset(ctx, old, off)
	if err == nil {
		s.setState(backends.StateReady)
		return st, nil
	}
	// Halt: whatever runs now is not to be trusted with another call.
	s.mu.Lock()
	cur := s.cur
	s.cur, s.state = nil, backends.StateFailed
	s.mu.Unlock()
	s.reap(cur)
	if c := backends.CodeOf(err); c != backends.ErrResetDivergence && c != backends.ErrResetTimeout && c != backends.ErrResetFailed {
		err = &backends.Error{Code: backends.ErrResetFailed, Doing: doing, Err: err, Fix: "boot a fresh sandbox"}
	}
	return st, err
}

func (s *Sandbox) reset(ctx context.Context, old *instance, off []backends.Source) (backends.ResetState, error) {
	var none backends.ResetState
	if s.fails(leakFlakyReset) {
		return none, fmt.Errorf("it fails once in %d", flakyEvery)
	}
	s.mu.Lock()
	r := *s.r // tampers swap its fields
	s.mu.Unlock()
	off = append(append([]backends.Source(nil), off...), s.leaks.ignored()...)
	if s.leaks[leakNoRestore] {
		return s.verify(ctx, old, r, off)
	}
	m, err := s.plant(ctx, old, &r)
	if err != nil {
		return none, fmt.Errorf("plant the markers: %w", err)
	}
	v, err := s.launch(ctx, &r)
	if err != nil {
		return none, fmt.Errorf("start a fresh instance: %w", err)
	}
	s.adopt(v)
	s.reap(old)
	if err := m.gone(ctx, old, v, s.leaks[leakSharePID]); err != nil {
		return none, err
	}
	return s.verify(ctx, v, r, off)
}

// verify reads the three sources of v and compares them with the baseline.
func (s *Sandbox) verify(ctx context.Context, v *instance, r run, off []backends.Source) (backends.ResetState, error) {
	return integrity.Verify(ctx, r.base.FSHash, r.base, integrity.Readings{
		FSHash: func(ctx context.Context) (string, error) { return integrity.HashTree(ctx, r.root.dir) },
		OpenFDCount: func(ctx context.Context) (int, error) {
			var n wire.OpenFDCount
			err := v.client.Query(ctx, wire.QueryOpenFDCount, &n)
			if err == nil && r.hooks.fds != nil {
				n.Count = r.hooks.fds(n.Count)
			}
			return n.Count, err
		},
		VMMState: func(context.Context) (string, error) {
			if r.hooks.state != nil {
				r.hooks.state(v)
			}
			return v.state()
		},
	}, off...)
}

// markers are what must not survive a reset.
type markers struct {
	epoch string
	paths []string
}

// plant replaces the epoch in the agent's memory and writes a marker to every
// writable directory.
func (s *Sandbox) plant(ctx context.Context, v *instance, r *run) (markers, error) {
	m := markers{epoch: wire.NewNonceString()}
	ack, err := v.client.Reset(ctx, wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "plant", Epoch: m.epoch})
	if err != nil {
		return m, err
	}
	if ack.Epoch != m.epoch {
		return m, errors.New("the agent did not take the planted epoch")
	}
	for _, dir := range s.spec(r).writable() {
		m.paths = append(m.paths, filepath.Join(dir, ".bsm-marker-"+m.epoch))
	}
	return m, each(m.paths, func(p string) error {
		e, err := v.client.Execute(ctx, backends.Invocation{Tool: "fs.write", Params: map[string]string{"path": p, "content": m.epoch}})
		if err == nil && e.ExitCode != 0 {
			err = fmt.Errorf("write %s: exit code %d: %s", p, e.ExitCode, e.Stderr)
		}
		return err
	})
}

// gone says why v could still be what the markers were planted in. The files
// are looked for from the host, so a lying agent changes nothing.
func (m markers) gone(ctx context.Context, old, v *instance, sharedPIDs bool) error {
	if v.init == old.init || v.child.PID() == old.child.PID() || (v.pidns == old.pidns && !sharedPIDs) {
		return errors.New("the sandbox process is the old one")
	}
	var e wire.Epoch
	if err := v.client.Query(ctx, wire.QueryEpoch, &e); err != nil {
		return err
	}
	if e.Epoch == m.epoch || v.client.Hello().Epoch == m.epoch {
		return errors.New("the planted epoch survived the reset")
	}
	return each(m.paths, func(p string) error {
		_, err := os.Lstat(fmt.Sprintf("/proc/%d/root%s", v.init, p))
		switch {
		case err == nil:
			return fmt.Errorf("the marker %s survived the reset", p)
		case errors.Is(err, os.ErrNotExist):
			return nil
		case !errors.Is(err, os.ErrPermission):
			return err
		}
		// A host that hides its own children's files: then ask inside.
		l, err := v.client.Execute(ctx, backends.Invocation{Tool: "ls", Params: map[string]string{"path": filepath.Dir(p)}})
		switch {
		case err != nil:
			return err
		case l.ExitCode != 0:
			return fmt.Errorf("list %s: exit code %d: %s", filepath.Dir(p), l.ExitCode, l.Stderr)
		case bytes.Contains(l.Stdout.Bytes(), []byte(filepath.Base(p))):
			return fmt.Errorf("the marker %s survived the reset", p)
		}
		return nil
	})
}

// each runs do for all paths at once.
func each(paths []string, do func(string) error) error {
	errs := make(chan error, len(paths))
	for _, p := range paths {
		go func() { errs <- do(p) }()
	}
	var all []error
	for range paths {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
