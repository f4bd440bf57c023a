package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// run is the root verb: a battery against a sandbox. Everything that the user
// can get wrong is refused before anything boots.
func (a *App) run(ctx context.Context, o *runOptions) error {
	r, err := a.prepare(o)
	if err != nil {
		return err
	}
	defer a.takeTurns(r.Backend)()
	dest, err := a.destination(o.output)
	if err != nil {
		return usage(err)
	}
	if dest != nil {
		defer dest.Discard()
	}
	k, err := a.equip(ctx, o.sandboxOptions, r.Policy)
	if err != nil {
		return err
	}
	k.into(r)
	p := newProgress(a.Err, a.Terminal)
	r.Watch = p.event
	rep, runErr := r.Run(ctx)
	p.clear()
	if runErr != nil && !errors.Is(runErr, context.Canceled) {
		return findings(runErr)
	}
	return a.finish(o, rep, dest)
}

// takeTurns keeps host and agent on one processor where they share a process.
// They only ever wait for one another there, and waking a second thread for each
// message costs more than most messages do. GOMAXPROCS keeps its meaning.
func (a *App) takeTurns(backend string) (undo func()) {
	entry, err := backendcatalog.Lookup(a.Backends(), backend)
	if err != nil || !entry.InProcess || os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	before := runtime.GOMAXPROCS(1)
	return func() { runtime.GOMAXPROCS(before) }
}

// prepare checks the flags and makes a runner of them.
func (a *App) prepare(o *runOptions) (*runner.Runner, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	entry, err := backendcatalog.Lookup(a.Backends(), o.sandbox)
	if err != nil {
		return nil, usagef("--sandbox: %w", err)
	}
	all := a.Probes()
	list, err := probecatalog.Select(all, o.probes)
	if err != nil {
		return nil, usagef("--probes: %w", err)
	}
	list, shard, err := o.split(list)
	if err != nil {
		return nil, err
	}
	budgets, err := parseBudgets(o.budgets, all)
	if err != nil {
		return nil, err
	}
	pol, err := loadPolicy(o.policy, entry)
	if err != nil {
		return nil, usagef("--policy: %w", err)
	}
	leaks := slices.Concat(pol.Leaks, o.leaks)
	if err := checkLeaks(entry, leaks, o.ownHost); err != nil {
		return nil, usagef("--leak: %w", err)
	}
	digest := sync.OnceValue(ownDigest)
	if !entry.Real && shard == nil { // a whole run of the mock is short, and nobody has to join it
		digest = nil
	}
	return &runner.Runner{
		Backend: entry.Name, Probes: list, Shard: shard, Exclusions: entry.NeverHosts,
		AllowDisruptive: o.allowDisruptive, Policy: pol, Leaks: leaks,
		FailSeverity: probes.Severity(o.failSeverity), Iterations: o.iterations,
		LatencyBudget: o.latBudget, RawSamples: o.rawSamples, Budgets: budgets,
		Version: a.Version, Digest: digest, Log: a.logger(o.verbose),
	}, nil
}

func checkLeaks(entry backends.Entry, names []string, ownHost bool) error {
	valid := make([]string, len(entry.Leaks))
	for i, l := range entry.Leaks {
		valid[i] = l.Name
	}
	for _, name := range names {
		i := slices.Index(valid, name)
		switch {
		case i < 0 && len(valid) == 0:
			return fmt.Errorf("the %s backend has no leaks, so not %q either", entry.Name, name)
		case i < 0:
			return fmt.Errorf("the %s backend has no leak %q; did you mean %q? valid: %s", entry.Name, name, nearest.To(name, valid), strings.Join(valid, ", "))
		case entry.Leaks[i].NeedsOwnHost && !ownHost:
			return fmt.Errorf("leak %q weakens this host while it runs; --i-own-this-host allows it", name)
		}
	}
	return nil
}

// destination opens the place of the report; nil is none: the table on the
// terminal is all that was asked for.
func (a *App) destination(output string) (*report.Destination, error) {
	if output == "" {
		if _, tty := a.Terminal(a.Out); tty {
			return nil, nil
		}
		output = report.Stdout
	}
	return report.Open(output, a.Out)
}

// finish writes the report, shows the table and chooses the exit code.
func (a *App) finish(o *runOptions, rep probes.Report, dest *report.Destination) error {
	var writeErr error
	if dest != nil {
		b, err := report.Encode(rep)
		if err == nil {
			err = dest.Write(b)
		}
		writeErr = err
	}
	a.show(rep)
	if writeErr == nil && dest != nil && o.output != "" && o.output != report.Stdout {
		a.say("report written to %s", o.output)
	}
	if writeErr == nil && dest != nil && o.output == "" && discards(a.Out) {
		a.say("the report went to %s; -o FILE keeps it", os.DevNull)
	}
	for _, line := range rep.SummaryLines() {
		a.say("%s", line)
	}
	switch {
	case writeErr != nil:
		return findings(writeErr)
	case rep.Unavailable && o.onUnavailable == "fail":
		return silent(ExitUnavailable)
	case !rep.Clean():
		return silent(ExitFindings)
	}
	return nil
}

// discards reports whether w is /dev/null, which is also what Go puts in the
// place of a stdout that was closed when the program started.
func discards(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	null, err := os.Stat(os.DevNull)
	if err != nil {
		return false
	}
	fi, err := f.Stat()
	return err == nil && os.SameFile(fi, null)
}

// show prints the table, the findings in full and the notes, on stderr.
func (a *App) show(rep probes.Report) {
	width, tty := a.Terminal(a.Err)
	if !tty {
		width = 120
	}
	rep = plainReport(rep)
	if err := report.Table(a.Err, rep, width); err != nil {
		return // stderr is gone; the report is what counts
	}
	for _, f := range report.Findings(rep) {
		a.say("  %s", plain(f))
	}
	for _, n := range rep.Notes[:max(len(rep.Notes)-1, 0)] { // the last one is a summary line
		a.say("  note: %s", n)
	}
}

// say prints a line on stderr. That it cannot be printed has no better place to
// be said.
func (a *App) say(format string, args ...any) { _, _ = fmt.Fprintf(a.Err, format+"\n", args...) }

func (a *App) logger(verbose bool) *slog.Logger {
	if !verbose {
		return slog.New(slog.DiscardHandler)
	}
	return a.told(slog.LevelDebug)
}

// told logs on stderr, without the time of day: a run's report has it.
func (a *App) told(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
		switch {
		case len(groups) == 0 && at.Key == slog.TimeKey:
			return slog.Attr{}
		case at.Value.Kind() == slog.KindString, at.Value.Kind() == slog.KindAny && at.Key != slog.LevelKey:
			return slog.String(at.Key, plain(at.Value.String()))
		}
		return at
	}}))
}
