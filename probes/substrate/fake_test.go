package substrate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// habits are what a test makes of a sandbox; nil does the honest thing.
type habits struct {
	// reset replaces the answer of a reset over the sources that were tampered
	// with and are compared.
	reset func(bad []backends.Source) (backends.ResetState, error)
	// ignoring replaces the answer of ResetIgnoring.
	ignoring func() error
	apply    func() error
	undo     func() error
	keeps    bool // a reset leaves the marker
	forgets  bool // the marker is gone at once
	stays    bool // a divergence does not halt
	noTool   bool
	mute     bool // proves nothing
	dulls    bool // proves nothing after a reset
	noBoot   bool
}

type world struct {
	backends.Sandbox
	h habits

	mu      sync.Mutex
	state   backends.State
	bad     map[backends.Source]bool
	markers map[string]bool
	stopped int
	used    bool // it was reset
}

func newWorld(h habits) *world {
	return &world{h: h, state: backends.StateReady, bad: map[backends.Source]bool{}, markers: map[string]bool{}}
}

func (w *world) State() backends.State { w.mu.Lock(); defer w.mu.Unlock(); return w.state }

func (w *world) Boot(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = backends.StateReady
	return nil
}

func (w *world) Shutdown(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = backends.StateNotBooted
	w.stopped++
	return nil
}

func (w *world) Tampers() []backends.Tamper {
	t := func(name string, src backends.Source) backends.Tamper {
		return backends.Tamper{Name: name, About: "a change of " + name, Source: src, Apply: func(context.Context) (func() error, error) {
			if w.h.apply != nil {
				return nil, w.h.apply()
			}
			w.set(src, true)
			return func() error {
				w.set(src, false)
				if w.h.undo != nil {
					return w.h.undo()
				}
				return nil
			}, nil
		}}
	}
	return []backends.Tamper{t("disk", backends.SourceFSHash), t("guest", backends.SourceOpenFDCount), t("vmm", backends.SourceVMMState),
		{Name: "truth", Source: backends.SourceOpenFDCount, NotCovered: "a lie that equals the truth"}}
}

func (w *world) set(src backends.Source, v bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bad[src] = v
}

func (w *world) Reset(ctx context.Context) (backends.ResetState, error) { return w.reset() }

func (w *world) ResetIgnoring(_ context.Context, off ...backends.Source) (backends.ResetState, error) {
	if w.h.ignoring != nil {
		return backends.ResetState{}, w.h.ignoring()
	}
	return w.reset(off...)
}

func clean() (backends.ResetState, error) {
	return backends.ResetState{VerificationPassed: true, VerificationDetails: backends.VerificationDetails{DivergenceAction: backends.ActionNone}}, nil
}

func diverged(sources ...backends.Source) (backends.ResetState, error) {
	st := backends.ResetState{VerificationDetails: backends.VerificationDetails{DivergenceAction: backends.ActionHalt}}
	return st, &backends.DivergenceError{State: st, Sources: sources}
}

func (w *world) reset(off ...backends.Source) (st backends.ResetState, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != backends.StateReady {
		return st, backends.ErrResetFailed
	}
	w.used = true
	if !w.h.keeps {
		clear(w.markers)
	}
	var bad []backends.Source
	for _, s := range backends.Sources() {
		if w.bad[s] && !slices.Contains(off, s) {
			bad = append(bad, s)
		}
	}
	switch {
	case w.h.reset != nil:
		st, err = w.h.reset(bad)
	case len(bad) > 0:
		st, err = diverged(bad...)
	default:
		st, err = clean()
	}
	if err != nil && !w.h.stays {
		w.state = backends.StateFailed
	}
	return st, err
}

func (w *world) Execute(_ context.Context, inv backends.Invocation) (backends.Execution, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != backends.StateReady {
		return backends.Execution{}, backends.ErrToolError
	}
	if inv.Tool == "noop" {
		return backends.Execution{}, nil
	}
	if w.h.noTool {
		return backends.Execution{ExitCode: wire.ExitNoTool}, nil
	}
	p := inv.Params.(attack.SubstrateAnchorParams)
	r := wire.NewRecorder(attack.SubstrateAnchor, p.Nonce)
	if !w.h.mute && (!w.h.dulls || !w.used) {
		r.Prove(wire.Attempt{Case: attack.AnchorCase, Result: wire.ResultOK})
	}
	a := wire.Attempt{Case: attack.AnchorCase, Op: "read", Target: "/tmp", Result: wire.ResultAbsent}
	if p.Drop {
		w.markers[p.Marker] = !w.h.forgets
		a.Op, a.Result = "write", wire.ResultOK
	} else if w.markers[p.Marker] {
		a.Result = wire.ResultOK
	}
	r.Try(a)
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		return backends.Execution{}, err
	}
	return backends.Execution{Stdout: backends.NewText(b.Bytes())}, nil
}

// rearming is a world that leaves its halt on request.
type rearming struct {
	*world
	err    error
	broken bool // it is not clean afterwards
	times  int
}

func (r *rearming) Rearm(context.Context) error {
	r.times++
	if r.err != nil {
		return r.err
	}
	if r.broken {
		r.set(backends.SourceFSHash, true)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = backends.StateReady
	return nil
}

// dock makes fresh sandboxes of one kind and remembers them.
type dock struct {
	mu   sync.Mutex
	h    habits
	wrap func(*world) backends.Sandbox
	made []*world
}

func (d *dock) fresh(context.Context) (backends.Sandbox, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.h.noBoot {
		return nil, errors.New("no room")
	}
	w := newWorld(d.h)
	d.made = append(d.made, w)
	if d.wrap != nil {
		return d.wrap(w), nil
	}
	return w, nil
}

func try(t *testing.T, h habits) (probes.Outcome, *dock) {
	t.Helper()
	d := &dock{h: h}
	own := newWorld(h)
	out, err := run(t.Context(), &probes.Env{Sandbox: own, Fresh: d.fresh, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Zero(t, own.stopped, "the run's own sandbox is the runner's to shut down")
	if out.Verdict == probes.Contained {
		require.Equal(t, backends.StateReady, own.State(), "what is meant to halt is another sandbox")
	}
	for _, w := range d.made {
		require.Equal(t, 1, w.stopped, "every fresh sandbox is shut down, once")
	}
	return out, d
}
