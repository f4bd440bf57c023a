package mock

import (
	"context"
	"errors"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

// substrateTampers changes what the resets of one instance rest on.
type substrateTampers struct{ inst *instance }

func newTampers(i *instance) *substrateTampers { return &substrateTampers{i} }

// Tampers are the changes that P-A6 makes.
func (s *Sandbox) Tampers() []backends.Tamper {
	s.mu.Lock()
	t := s.tampers
	s.mu.Unlock()
	if t == nil {
		return nil
	}
	w := t.inst.world
	return []backends.Tamper{
		t.flip("disk-byte", "one byte of the simulated disk is changed; its length stays", func() []byte { return w.disk }),
		t.flip("snapshot-byte", "one byte of the simulated snapshot is changed; its length stays", func() []byte { return w.snapshot }),
		{Name: "baseline-byte", About: "one digit of the recorded baseline hash is changed", Source: backends.SourceFSHash, Apply: t.baseline},
		{Name: "lying-guest", About: "the agent counts one descriptor more than it had", Source: backends.SourceOpenFDCount,
			Apply: t.set(func() { w.fds++ }, func() { w.fds-- })},
		{Name: "lying-guest-truth", About: "the agent reports the very count of the baseline although its world differs", Source: backends.SourceOpenFDCount,
			NotCovered: "a lie that equals the truth cannot be told from it",
			Apply: func(context.Context) (func() error, error) {
				return nil, errors.New("there is nothing to change: the lie equals the truth")
			}},
		{Name: "lying-vmm", About: "the simulated VMM reports another state than it is in", Source: backends.SourceVMMState,
			Apply: t.set(func() { w.vmm = integrity.StatePaused }, func() { w.vmm = integrity.StateRunning })},
		{Name: "phantom-vmm", About: "the simulated VMM is gone and its API answers with an error", Source: backends.SourceVMMState,
			Apply: t.set(func() { w.vmm = integrity.StateError }, func() { w.vmm = integrity.StateRunning })},
	}
}

// set runs do under the world's lock, and undo once afterwards.
func (t *substrateTampers) set(do, undo func()) func(context.Context) (func() error, error) {
	return func(context.Context) (func() error, error) {
		w := t.inst.world
		locked := func(f func()) {
			w.mu.Lock()
			defer w.mu.Unlock()
			f()
		}
		locked(do)
		return sync.OnceValue(func() error { locked(undo); return nil }), nil
	}
}

func (t *substrateTampers) flip(name, about string, of func() []byte) backends.Tamper {
	change := func() { b := of(); b[len(b)/2] ^= 1 }
	return backends.Tamper{Name: name, About: about, Source: backends.SourceFSHash, Apply: t.set(change, change)}
}

func (t *substrateTampers) baseline(context.Context) (func() error, error) {
	i := t.inst
	i.mu.Lock()
	defer i.mu.Unlock()
	old := i.base.FSHash
	last := byte('0')
	if old[len(old)-1] == last {
		last = '1'
	}
	i.base.FSHash = old[:len(old)-1] + string(last)
	return func() error {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.base.FSHash = old
		return nil
	}, nil
}
