package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/ab"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/latency"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

type abOptions struct {
	sandboxOptions
	base, head         string
	probes             string
	rounds, iterations int
	format, output     string
	ownHost            bool
}

func (a *App) abCommand() *cobra.Command {
	var o abOptions
	c := &cobra.Command{
		Use: "ab --base POLICY --head POLICY", Short: "Compare the latencies of two configurations on this host", Args: noArgs,
		Long: "ab measures two policies of one backend in turns (ABBA, BAAB, ...), each block in a freshly booted\n" +
			"sandbox. It first measures the base against itself. A difference is a verdict only if it is\n" +
			"significant (p < 0.01 by exact permutation of blocks, Holm over all metrics), over 5 % and over three\n" +
			"times the noise of the base against itself, and there again in a second run. Anything else is no\n" +
			"change, where a larger one is excluded, or inconclusive. Exit: 1 a regression, 3 the backend cannot\n" +
			"run here, 0 otherwise: inconclusive is said, and does not fail.",
		Example: "  bsm-redteam ab --sandbox qemu --base small.yaml --head large.yaml --probes P-LAT-reset",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.ab(cmd.Context(), o) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.base, "base", "", "YAML `FILE` with the policy to compare with")
	f.StringVar(&o.head, "head", "", "YAML `FILE` with the policy in question")
	o.addMachineFlags(f)
	f.StringVar(&o.probes, "probes", "lat", "comma `LIST` of latency probes")
	f.IntVar(&o.rounds, "rounds", ab.MinRounds, "`N` times ABBA or BAAB in each of the phases A/A, A/B and confirm")
	f.IntVar(&o.iterations, "iterations", 20, "`N` samples of each probe in each block, after its warm-up")
	f.StringVar(&o.format, "format", "text", "`FORMAT` of the answer: text, markdown or json")
	f.StringVarP(&o.output, "output", "o", report.Stdout, "`FILE` for the answer, - for stdout")
	f.BoolVar(&o.ownHost, "i-own-this-host", false, "allow leaks that weaken this host while they run")
	return c
}

// check refuses values before anything boots.
func (o *abOptions) check() error {
	switch {
	case o.base == "" || o.head == "":
		return usagef("ab needs --base FILE and --head FILE")
	case o.rounds < ab.MinRounds:
		return usagef("--rounds %d: with fewer than %d no difference could be significant", o.rounds, ab.MinRounds)
	case o.iterations < 1:
		return usagef("--iterations %d: at least 1 is needed", o.iterations)
	}
	return oneOf("--format", o.format, ab.Formats()...)
}

// arm is one configuration and what its sandboxes are made with.
type arm struct {
	pol   policy.Policy
	kit   *kit
	leaks []string
	prov  *backends.Provenance // of the last sandbox
}

func (a *App) ab(ctx context.Context, o abOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	entry, err := backendcatalog.Lookup(a.Backends(), o.sandbox)
	if err != nil {
		return usagef("--sandbox: %w", err)
	}
	list, err := probecatalog.Select(a.Probes(), o.probes)
	if err != nil {
		return usagef("--probes: %w", err)
	}
	if i := slices.IndexFunc(list, func(p probes.Probe) bool { return p.Class != probes.ClassLatency }); i >= 0 {
		return usagef("--probes: %s measures no latency; ab compares latencies", list[i].Name)
	}
	var arms [2]*arm
	for i, path := range []string{o.base, o.head} {
		if arms[i], err = a.arm(ctx, o, entry, ab.Arm(i), path); err != nil {
			return err
		}
	}
	dest, err := report.Open(o.output, a.Out)
	if err != nil {
		return usage(err)
	}
	defer dest.Discard()

	m := &measurer{app: a, opts: o, entry: entry, probes: list, arms: arms}
	design := ab.DefaultDesign()
	design.Rounds = o.rounds
	began, timed := hostcheck.ReadCPUTime()
	result, err := ab.Run(ctx, design, m.block, m.watch)
	if err != nil {
		return m.failed(err)
	}
	out := ab.Report{
		Result: result, GeneratedAt: time.Now().UTC().Format(probes.TimeLayout), Backend: entry.Name, Harness: a.Version,
		Base: arms[0].describe(), Head: arms[1].describe(), Host: hostcheck.Collect(), Rounds: o.rounds, Iterations: o.iterations,
		Alpha: design.Alpha, MinEffect: design.MinEffect, NoiseFactor: design.NoiseFactor, Notes: m.notes,
	}
	if now, ok := hostcheck.ReadCPUTime(); ok && timed {
		stolen := now.Stolen(began)
		out.Steal = &stolen
	}
	b, err := out.Render(o.format)
	if err != nil {
		return findings(err)
	}
	if err := dest.Write(b); err != nil {
		return findings(err)
	}
	if result.Verdict == ab.Regression {
		return silent(ExitFindings)
	}
	return nil
}

func (a *App) arm(ctx context.Context, o abOptions, entry backends.Entry, which ab.Arm, path string) (*arm, error) {
	pol, err := policy.Load(path, entry.Name, entry.DefaultLimits)
	if err != nil {
		return nil, usagef("--%s: %w", which, err)
	}
	if err := checkLeaks(entry, pol.Leaks, o.ownHost); err != nil {
		return nil, usagef("--%s: %w", which, err)
	}
	k, err := a.equip(ctx, o.sandboxOptions, pol)
	if err != nil {
		return nil, err
	}
	return &arm{pol: pol, kit: k, leaks: pol.Leaks}, nil
}

func (m *arm) describe() ab.Configuration {
	return ab.Configuration{Policy: m.pol.Name, PolicySHA256: m.pol.Digest(), Leaks: m.leaks, Sandbox: m.prov}
}

// measurer measures blocks by running the latency battery as any run does.
type measurer struct {
	app    *App
	opts   abOptions
	entry  backends.Entry
	probes []probes.Probe
	arms   [2]*arm
	notes  []string
	// reason is why the last probe that gave no sample gave none.
	reason string
}

// errUnavailable: this host cannot run the backend.
var errUnavailable = errors.New("the backend is not available on this host; fix: bsm-redteam doctor")

func (m *measurer) block(ctx context.Context, which ab.Arm) (ab.Block, error) {
	arm := m.arms[which]
	r := &runner.Runner{
		Backend: m.entry.Name, Probes: m.probes, Exclusions: m.entry.NeverHosts, Policy: arm.pol, Leaks: arm.leaks,
		Iterations: m.opts.iterations, RawSamples: true, Version: m.app.Version, Log: m.app.logger(m.opts.verbose),
	}
	arm.kit.into(r)
	rep, err := r.Run(ctx)
	if err != nil {
		return nil, err
	}
	if rep.Unavailable {
		return nil, errUnavailable
	}
	arm.prov = rep.Environment.Sandbox
	block := ab.Block{}
	for _, p := range rep.Probes {
		m.add(block, p)
	}
	for _, s := range rep.SkippedProbes {
		m.note("%s was not measured: %s", s.Name, s.Reason)
	}
	if rep.Environment.Sandbox != nil && rep.Environment.Sandbox.Accelerator == "tcg" {
		m.note("both were emulated: what is compared is the emulator's work, not the processor's")
	}
	return block, nil
}

// add takes the samples of one result. A probe that came to no answer failed in
// every iteration.
func (m *measurer) add(block ab.Block, p probes.Result) {
	failed, _ := p.Evidence["iterations_failed"].(int)
	warmup, _ := p.Evidence["warmup"].(int)
	if len(p.Samples) == 0 {
		m.reason = p.Reason
		block[p.Name] = ab.Series{Failed: max(failed, m.opts.iterations), Warmup: warmup}
		return
	}
	for name, samples := range p.Samples {
		s := ab.Series{Warmup: warmup}
		if name == p.Name {
			s.Failed = failed
		}
		for _, ns := range samples {
			s.Samples = append(s.Samples, time.Duration(ns))
		}
		block[name] = s
	}
	if p.Name == latency.NameBoot && failed > 0 {
		m.note("boots failed; shutdowns are those of the boots that did not")
	}
}

// note keeps a remark once.
func (m *measurer) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(m.notes, n) {
		m.notes = append(m.notes, n)
	}
}

// watch says on stderr how far the comparison is, once per round.
func (m *measurer) watch(phase string, block, of int) {
	if block%4 == 0 {
		m.app.say("%s: round %d of %d", phase, block/4+1, of/4)
	}
}

// failed maps an error of the comparison to an exit code.
func (m *measurer) failed(err error) error {
	switch {
	case errors.Is(err, errUnavailable):
		return &exitError{ExitUnavailable, err}
	case errors.Is(err, ab.ErrNothingMeasured) && m.reason != "":
		return findings(fmt.Errorf("%w: %s", err, plain(m.reason)))
	}
	return findings(err)
}
