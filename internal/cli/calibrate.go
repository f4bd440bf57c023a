package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/calibrate"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

type calibrateOptions struct {
	sandboxOptions
	probes        string
	iterations    int
	latBudget     time.Duration
	full, ownHost bool
}

func (a *App) calibrateCommand() *cobra.Command {
	var o calibrateOptions
	c := &cobra.Command{
		Use: "calibrate", Short: "Show that every probe can fail, on deliberately leaking variants of a backend", Args: noArgs,
		Example: "  bsm-redteam calibrate --sandbox bwrap",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.calibrate(cmd.Context(), o) },
	}
	f := c.Flags()
	o.addFlags(f)
	f.StringVar(&o.probes, "probes", "all", "comma list of batteries, classes and probe names")
	f.IntVar(&o.iterations, "iterations", 20, "samples of each latency probe")
	f.DurationVar(&o.latBudget, "lat-budget", time.Minute, "time cap of each latency probe")
	f.BoolVar(&o.full, "full", false, "run every probe against every leak, not only the expected ones")
	f.BoolVar(&o.ownHost, "i-own-this-host", false, "allow leaks that weaken this host while they run")
	return c
}

func (a *App) calibrate(ctx context.Context, o calibrateOptions) error {
	if o.iterations < 1 {
		return usagef("--iterations %d: at least 1 is needed", o.iterations)
	}
	entry, err := backendcatalog.Lookup(a.Backends(), o.sandbox)
	if err != nil {
		return usagef("--sandbox: %w", err)
	}
	list, err := probecatalog.Select(a.Probes(), o.probes)
	if err != nil {
		return usagef("--probes: %w", err)
	}
	pol, err := loadPolicy(o.policy, entry)
	if err != nil {
		return usagef("--policy: %w", err)
	}
	k, err := a.equip(ctx, o.sandboxOptions, pol)
	if err != nil {
		return err
	}
	if k.unavailable != nil {
		return &exitError{ExitUnavailable, k.unavailable}
	}
	m, err := calibrate.Suite{
		Entry: entry, Probes: list, New: k.new, Full: o.full, OwnHost: o.ownHost, Watch: a.say,
		Run: func(ctx context.Context, leaks []string, list []probes.Probe) (probes.Report, error) {
			return a.variant(ctx, k, pol, o, leaks, list)
		},
	}.Calibrate(ctx)
	if len(m.Base.Answers) > 0 {
		if _, werr := io.WriteString(a.Out, m.Table()); werr != nil && err == nil {
			err = written(werr)
		}
	}
	if err != nil {
		if backends.CodeOf(err) == backends.ErrNotAvailable {
			return &exitError{ExitUnavailable, err}
		}
		return findings(err)
	}
	for _, complaint := range m.Complaints() {
		a.say("PROBLEM: %s", plain(complaint))
	}
	if !m.OK() {
		return findings(fmt.Errorf("%s is not calibrated: %d problems", entry.Name, len(m.Complaints())))
	}
	built, rest := len(m.Built()), ""
	if n := len(m.Rows) - built; n > 0 {
		rest = fmt.Sprintf(", %d not built on this host", n)
	}
	a.say("bsm-redteam: %s is calibrated: %d leaks proven and caught%s, the base raised nothing", entry.Name, built, rest)
	return nil
}

// variant runs probes against one variant of the backend.
func (a *App) variant(ctx context.Context, k *kit, pol policy.Policy, o calibrateOptions, leaks []string, list []probes.Probe) (probes.Report, error) {
	r := &runner.Runner{
		Backend: k.entry.Name, Probes: list, Leaks: leaks, Policy: pol, Exclusions: k.entry.NeverHosts,
		Iterations: o.iterations, LatencyBudget: o.latBudget, Version: a.Version,
		Watch: func(e runner.Event) {
			if e.Result != nil {
				a.say("  %s: %s (%.1fs)", e.Probe, e.Result.Verdict, float64(e.Result.DurationMS)/1000)
			}
		},
	}
	k.into(r)
	return r.Run(ctx)
}
