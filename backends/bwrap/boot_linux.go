package bwrap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// boot prepares the root file system, starts the first instance and records,
// or loads, the baseline. What it leaves after an error, teardown removes.
func (s *Sandbox) boot(ctx context.Context, bin program) error {
	agent, err := os.Open(s.o.Agent)
	if err != nil {
		return &backends.Error{Doing: "open the agent", Code: backends.ErrBootFailed, Err: err, Fix: fixAgent}
	}
	defer agent.Close()
	cache, err := cacheDir(s.o.WorkDir, identity())
	if err != nil {
		return err
	}
	r := &run{bwrap: bin}
	if r.root, r.agentSum, err = remembered(agent, cache); err != nil {
		if r.root, r.agentSum, err = prepare(ctx, agent, cache, s.o.Ledger); err != nil {
			return err
		}
	}
	now := time.Now()
	if err := os.Chtimes(r.root.dir, now, now); err != nil { // in use, so not to be expired
		return err
	}
	s.mu.Lock()
	s.r = r
	s.mu.Unlock()

	// What runs is hashed in full in every boot, but while bubblewrap starts.
	checked := make(chan error, 1)
	go func() { checked <- r.check(ctx, cache, &bin) }()
	v, err := s.launch(ctx, r)
	if v != nil {
		s.adopt(v)
	}
	if err = errors.Join(err, <-checked); err != nil {
		return err
	}
	s.mu.Lock()
	r.bwrap = bin
	s.mu.Unlock()
	return s.baseline(ctx, v, r)
}

// check reads the tree, the agent in it included, and bubblewrap as they are
// now. The tree may not differ from what was built.
func (r *run) check(ctx context.Context, cache string, bin *program) error {
	b, err1 := bin.remembered(ctx, cache)
	tree, err2 := integrity.HashTree(ctx, r.root.dir)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	*bin = b
	if tree != r.root.digest {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "check the root file system",
			Err: errors.New("it is not what was built"), Fix: "rm -rf " + r.root.dir + " " + r.root.dir + ".digest"}
	}
	return nil
}

// adopt makes v the present instance.
func (s *Sandbox) adopt(v *instance) {
	s.mu.Lock()
	s.cur = v
	s.mu.Unlock()
	s.watch(v)
}

// baseline loads the persisted baseline, or records one from this boot.
func (s *Sandbox) baseline(ctx context.Context, v *instance, r *run) error {
	if s.o.Baseline != "" {
		f, err := baseline.Load(s.o.Baseline)
		if err == nil {
			err = f.Check(r.identity())
		}
		if err != nil {
			return err
		}
		r.base, r.kind = f.Baseline, "persisted"
		return nil
	}
	if s.o.RequireBaseline {
		return &backends.Error{Code: backends.ErrBootFailed, Doing: "load the baseline", Err: errors.New("none is configured, and one is required"), Fix: baseline.Fix}
	}
	var fds wire.OpenFDCount
	if err := v.client.Query(ctx, wire.QueryOpenFDCount, &fds); err != nil {
		return fmt.Errorf("record the baseline: %w", err)
	}
	state, err := v.state()
	if err != nil {
		return fmt.Errorf("record the baseline: %w", err)
	}
	r.base, r.kind = integrity.Baseline{FSHash: r.root.digest, OpenFDCount: fds.Count, VMMState: state}, "recorded-in-run"
	if state != integrity.StateRunning {
		return fmt.Errorf("record the baseline: the fresh sandbox is %s", state)
	}
	return r.base.Validate()
}

// identity is what a baseline of this run is a baseline of.
func (r *run) identity() baseline.Identity {
	return baseline.Identity{Backend: Name, VMMVersion: r.bwrap.version, Digests: r.digests()}
}

func (r *run) digests() map[string]string {
	return map[string]string{"rootfs": r.root.digest, "agent": "sha256:" + r.agentSum, "bwrap": r.bwrap.digest}
}
