package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// kit is what sandboxes of one backend are made with: ledger, agent and image.
type kit struct {
	entry backends.Entry
	opts  backends.Options
	// unavailable says why no sandbox can be made here; nil when one can.
	unavailable error
}

// equip finds or builds what the backend needs, and nothing that it does not:
// a backend that is not there needs no agent, the mock runs none.
func (a *App) equip(ctx context.Context, o sandboxOptions, pol policy.Policy) (*kit, error) {
	entry, err := backendcatalog.Lookup(a.Backends(), o.sandbox)
	if err != nil {
		return nil, usagef("--sandbox: %w", err)
	}
	if err := checkFiles(o, entry); err != nil {
		return nil, usage(err)
	}
	if err := canary.PlantEnv(); err != nil { // before anything is booted
		return nil, findings(err)
	}
	led, err := ledger.Open("")
	if err != nil {
		return nil, findings(err)
	}
	k := &kit{entry: entry, opts: backends.Options{
		Agent: o.agent, Image: o.image, Baseline: o.baseline, RequireBaseline: o.requireBaseline,
		Limits: pol.Limits, Ledger: led, Log: a.logger(o.verbose),
	}}
	if !entry.Real {
		return k, nil
	}
	if _, err := entry.New(k.opts); errors.Is(err, backends.ErrNotAvailable) {
		k.unavailable = err
		return k, nil
	}
	// Building an image takes a while, so it says so also without --verbose.
	return k, k.fetch(ctx, o, a.told(slog.LevelInfo))
}

// checkFiles refuses files that the user named and that cannot be used: what was
// asked for by name is never skipped over.
func checkFiles(o sandboxOptions, entry backends.Entry) error {
	switch {
	case o.requireBaseline && o.baseline == "":
		return errors.New("--require-baseline needs --baseline FILE; fix: bsm-redteam baseline record")
	case o.image != "" && !entry.NeedsImage:
		return fmt.Errorf("--image: the %s backend boots no guest image", entry.Name)
	}
	if o.baseline != "" {
		f, err := baseline.Load(o.baseline)
		if err != nil {
			return fmt.Errorf("--baseline: %w", err)
		}
		if f.Identity.Backend != entry.Name {
			return fmt.Errorf("--baseline %s was recorded for backend %q, this is %q; fix: %s", o.baseline, f.Identity.Backend, entry.Name, baseline.Fix)
		}
	}
	if o.image != "" {
		if _, err := image.Verify(o.image); err != nil {
			return fmt.Errorf("--image: %w", err)
		}
	}
	return nil
}

// fetch finds the agent, and the image where the backend boots one.
func (k *kit) fetch(ctx context.Context, o sandboxOptions, news *slog.Logger) error {
	path, digest, err := agentbin.Find(ctx, o.agent)
	switch {
	case err != nil && o.agent != "":
		return usagef("--agent: %w", err)
	case err != nil:
		return findings(fmt.Errorf("find the agent: %w", err))
	}
	k.opts.Agent = path
	if !k.entry.NeedsImage || o.image != "" {
		return nil
	}
	cache, err := image.DefaultCacheDir()
	if err != nil {
		return findings(err)
	}
	m, err := image.Ensure(ctx, image.Options{CacheDir: cache, Arch: runtime.GOARCH, Kernel: image.Distro, Agent: path, AgentSHA256: digest, Log: news})
	switch {
	case err != nil && ctx.Err() != nil:
		return findings(ctx.Err())
	case err != nil:
		k.unavailable = &backends.Error{Code: backends.ErrNotAvailable, Doing: "make the guest image", Err: err}
	}
	k.opts.Image = m.Dir
	return nil
}

// new makes a sandbox, not booted, with the leaks built in.
func (k *kit) new(leaks []string) (backends.Sandbox, error) {
	if k.unavailable != nil {
		return nil, k.unavailable
	}
	opts := k.opts
	opts.Leaks = leaks
	return k.entry.New(opts)
}

// into gives a runner its sandboxes.
func (k *kit) into(r *runner.Runner) {
	r.Ledger, r.Agent, r.Log = k.opts.Ledger, k.opts.Agent, k.opts.Log
	r.New = func() (backends.Sandbox, error) { return k.new(r.Leaks) }
}
