package qemu

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// entropyBytes are credited to a restored guest: enough to seed its generator.
const entropyBytes = 64

// hooks are changes that tampers make behind the sandbox's back. Each stands
// for a part of the substrate that lies.
type hooks struct {
	status func(string) string // what QEMU's API answers
	fds    func(int) int       // what the guest answers
}

// restore starts a fresh QEMU from the golden snapshot and opens a session with
// its agent. While QEMU starts, and before it reads the snapshot, first is run.
// Nothing is left behind after an error.
func (s *Sandbox) restore(ctx context.Context, first func(context.Context) error) (_ *vm, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.t.restore, fmt.Errorf("not restored within %s", s.t.restore))
	defer cancel()
	state, err := s.r.dev.reopen()
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	ready := make(chan error, 1)
	go func() { ready <- first(ctx) }()
	v, err := s.launchVM(ctx, vmSpec{Incoming: true}, s.r.ram.f)
	if rerr := <-ready; err != nil || rerr != nil {
		if err == nil {
			err = v.kill()
		}
		return nil, errors.Join(rerr, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(s.withConsole(ctx, v, err), v.kill())
		}
	}()
	if err := v.load(ctx, state); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, v); err != nil {
		return nil, fmt.Errorf("wait for the restored agent: %w", err)
	}
	h := v.client.Hello()
	if h.Epoch != s.r.epoch || h.BootID != s.r.bootID {
		return nil, errors.New("the agent that answers is not the golden one")
	}
	// A restored guest lives in the past and repeats its random numbers.
	entropy := make([]byte, entropyBytes)
	_, _ = rand.Read(entropy) // never fails since Go 1.24
	ack, err := v.client.Reset(ctx, wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "restored", UnixNano: time.Now().UnixNano(), Entropy: entropy})
	if err != nil {
		return nil, fmt.Errorf("renew clock and entropy: %w", err)
	}
	if len(ack.Applied) != 2 {
		return nil, fmt.Errorf("renew clock and entropy: the guest applied %d of 2", len(ack.Applied))
	}
	return v, nil
}

// Reset replaces the running instance by a fresh one from the golden snapshot
// and verifies it.
func (s *Sandbox) Reset(ctx context.Context) (backends.ResetState, error) {
	return s.ResetIgnoring(ctx)
}

// ResetIgnoring is Reset with the comparison of some sources switched off.
func (s *Sandbox) ResetIgnoring(ctx context.Context, off ...backends.Source) (backends.ResetState, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return backends.ResetState{}, err
	}
	defer unlock()
	old, err := s.ready()
	if err != nil {
		return backends.ResetState{}, backends.Errorf(backends.ErrResetFailed, "reset qemu", "it is %s, not ready", s.State())
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
	err = errors.Join(err, cur.kill())
	if ctx.Err() == nil && !isResetError(err) {
		err = &backends.Error{Code: backends.ErrResetFailed, Doing: "reset qemu", Err: err, Fix: "boot a fresh sandbox"}
	}
	return st, err
}

// isResetError reports whether err says by itself how a reset failed. Whatever
// else came of QEMU or the agent is a failed reset.
func isResetError(err error) bool {
	return errors.Is(err, backends.ErrResetFailed) || errors.Is(err, backends.ErrResetDivergence) || errors.Is(err, backends.ErrResetTimeout)
}

func (s *Sandbox) reset(ctx context.Context, old *vm, off []backends.Source) (st backends.ResetState, err error) {
	// A guest that nobody used is spared, so that a harness which clears up
	// after a measurement is not hit instead of the measurement.
	if s.takeUsed() && s.fails(leakFlakyReset) {
		return st, fmt.Errorf("it fails once in %d", flakyEvery)
	}
	if s.leaks[leakNoRestore] {
		return s.verify(ctx, old, off...)
	}
	var m markers
	var v *vm
	s.step("restore the snapshot", &err, func() (err error) {
		v, err = s.restore(ctx, func(ctx context.Context) (err error) {
			if m, err = s.plant(ctx, old); err != nil {
				return fmt.Errorf("plant the markers: %w", err)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return st, err
	}
	s.mu.Lock()
	s.cur = v
	s.mu.Unlock()
	s.r.reap(old)
	if v.pid == old.pid {
		return st, errors.New("the VMM process is the old one")
	}
	return s.check(ctx, v, m, off)
}

// check looks for what a restore must not have kept and verifies v. A state
// comes with every error that is about v rather than about the way to it.
func (s *Sandbox) check(ctx context.Context, v *vm, m markers, off []backends.Source) (backends.ResetState, error) {
	var err error
	s.step("look for the markers", &err, func() error { return m.gone(ctx, v) })
	st, verr := s.verify(ctx, v, off...)
	if err == nil {
		return st, verr
	}
	st.VerificationPassed, st.VerificationDetails.DivergenceAction = false, backends.ActionHalt
	return st, &backends.Error{Code: backends.ErrResetFailed, Doing: "reset qemu", Err: err, Fix: "boot a fresh sandbox"}
}

// verify reads the three sources of v and compares them with the baseline.
func (s *Sandbox) verify(ctx context.Context, v *vm, off ...backends.Source) (backends.ResetState, error) {
	off = append(off, s.leaks.ignored()...)
	f, err := baseline.Load(s.r.baselinePath())
	if err != nil {
		return backends.ResetState{}, err
	}
	s.mu.Lock()
	h := s.hooks
	s.mu.Unlock()
	return integrity.Verifier{Settling: s.t.settle}.Verify(ctx, s.r.goldHash, f.Baseline, integrity.Readings{
		FSHash: s.substrate,
		OpenFDCount: func(ctx context.Context) (int, error) {
			var n wire.OpenFDCount
			err := v.client.Query(ctx, wire.QueryOpenFDCount, &n)
			if err == nil && h.fds != nil {
				n.Count = h.fds(n.Count)
			}
			return n.Count, err
		},
		VMMState: func(ctx context.Context) (string, error) { return s.reportedState(ctx, v) },
	}, off...)
}

// reportedState is what QEMU's API says, tampers and leaks included.
func (s *Sandbox) reportedState(ctx context.Context, v *vm) (string, error) {
	st, err := v.status(ctx)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	lie := s.hooks.status
	s.mu.Unlock()
	if lie != nil {
		st = lie(st)
	}
	if s.leaks[leakLyingQMP] {
		st = integrity.StateRunning
	}
	return st, nil
}

// substrate digests everything that a restore rests on. The disk is read in
// full. Snapshot files that are still the sealed ones keep their digests; with
// any other the answer is a digest that no baseline has.
func (s *Sandbox) substrate(ctx context.Context) (string, error) {
	disk, err := integrity.HashFile(ctx, s.r.rootfsPath)
	if err != nil {
		return "", err
	}
	ram, err := s.r.ram.digest(ctx)
	if err != nil {
		return "", err
	}
	dev, err := s.r.dev.digest(ctx)
	if err != nil {
		return "", err
	}
	if ram != s.r.digests[snapshotRAM] || dev != s.r.digests[snapshotState] {
		return combine(disk, ram, dev), nil
	}
	return disk, nil
}

// markers are what must not survive a reset.
type markers struct {
	epoch string
	paths []string
}

// markerDirs are the guest's writable file systems.
var markerDirs = []string{"/", "/tmp", "/run"}

func (s *Sandbox) plant(ctx context.Context, v *vm) (markers, error) {
	m := markers{epoch: wire.NewNonceString()}
	err := v.during(ctx, func(ctx context.Context) error {
		ack, err := v.client.Reset(ctx, wire.ResetSignal{Type: wire.TypeResetSignal, Reason: "plant", Epoch: m.epoch})
		if err != nil {
			return err
		}
		if ack.Epoch != m.epoch {
			return errors.New("the agent did not take the planted epoch")
		}
		for _, dir := range markerDirs {
			m.paths = append(m.paths, filepath.Join(dir, ".bsm-marker-"+m.epoch))
		}
		return each(m.paths, func(p string) error {
			ex, err := v.client.Execute(ctx, backends.Invocation{Tool: "fs.write", Params: map[string]string{"path": p, "content": m.epoch}})
			if err == nil && ex.ExitCode != 0 {
				err = fmt.Errorf("write %s: exit code %d: %s", p, ex.ExitCode, ex.Stderr)
			}
			return err
		})
	})
	return m, err
}

func (m markers) gone(ctx context.Context, v *vm) error {
	return v.during(ctx, func(ctx context.Context) error {
		var e wire.Epoch
		if err := v.client.Query(ctx, wire.QueryEpoch, &e); err != nil {
			return err
		}
		if e.Epoch == m.epoch {
			return errors.New("the planted epoch survived the reset")
		}
		return each(m.paths, func(p string) error {
			ex, err := v.client.Execute(ctx, backends.Invocation{Tool: "ls", Params: map[string]string{"path": filepath.Dir(p)}})
			switch {
			case err != nil:
				return err
			case ex.ExitCode != 0:
				return fmt.Errorf("list %s: exit code %d: %s", filepath.Dir(p), ex.ExitCode, ex.Stderr)
			case bytes.Contains(ex.Stdout.Bytes(), []byte(filepath.Base(p))):
				return fmt.Errorf("the marker %s survived the reset", p)
			}
			return nil
		})
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
