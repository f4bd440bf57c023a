// Package calibrate shows that the probes can fail: it runs them against
// deliberately leaking variants of a backend and draws up a matrix of leaks and
// probes. A probe that no leak fails proves nothing when it passes.
package calibrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Suite is what is calibrated.
type Suite struct {
	Entry  backends.Entry
	Probes []probes.Probe
	// New makes a sandbox with the leaks built in, not booted.
	New func(leaks []string) (backends.Sandbox, error)
	// Run carries probes out against the variant with the leaks.
	Run func(ctx context.Context, leaks []string, list []probes.Probe) (probes.Report, error)
	// Full runs every probe against every leak, not only the expected ones.
	Full bool
	// OwnHost allows leaks that weaken this host while they run.
	OwnHost bool
	// Watch is told what happens. It may be nil.
	Watch func(format string, args ...any)
}

// Row is what the probes said of one variant.
type Row struct {
	// Leak is the zero value for the base.
	Leak backends.Leak
	// Answers holds the verdict of each probe that ran; an errored one is
	// inconclusive, whatever it said before.
	Answers map[string]probes.Verdict
	// NotBuilt says why this host's kernel does not let the leak exist; no probe
	// was run then.
	NotBuilt string
	// Problems are sentences; none says that the row is as it should be.
	Problems []string
}

// Matrix is the outcome of a calibration.
type Matrix struct {
	Backend string
	Probes  []probes.Probe
	Base    Row
	Rows    []Row
	// Problems are those of no single row.
	Problems []string
}

// Built are the rows of the leaks that this host's kernel let be built.
func (m Matrix) Built() []Row {
	return slices.DeleteFunc(slices.Clone(m.Rows), func(r Row) bool { return r.NotBuilt != "" })
}

// OK reports whether the probes are calibrated: the base raised nothing, every
// leak that could be built was proven and caught, and every probe was failed by a leak.
func (m Matrix) OK() bool { return len(m.Complaints()) == 0 }

// Complaints lists every problem with its row.
func (m Matrix) Complaints() []string {
	var out []string
	for _, p := range m.Base.Problems {
		out = append(out, "base: "+p)
	}
	for _, r := range m.Rows {
		for _, p := range r.Problems {
			out = append(out, "leak "+r.Leak.Name+": "+p)
		}
	}
	return append(out, m.Problems...)
}

// proveTime bounds boot, ground truth and shutdown of one variant.
const proveTime = 2 * time.Minute

// Calibrate draws the matrix up. It returns an error only when it was ended or
// the backend is unavailable; what the probes got wrong is in the matrix.
func (s Suite) Calibrate(ctx context.Context) (Matrix, error) {
	m := Matrix{Backend: s.Entry.Name, Probes: s.hosted()}
	if len(m.Probes) == 0 {
		return m, errors.New("no probe to calibrate")
	}
	if len(s.Entry.Leaks) == 0 {
		return m, fmt.Errorf("the %s backend has no leaking variant to calibrate with", s.Entry.Name)
	}
	s.say("base: %d probes", len(m.Probes))
	base, err := s.base(ctx, m.Probes)
	if err != nil {
		return m, err
	}
	m.Base = base
	for _, leak := range s.Entry.Leaks {
		list := s.expected(leak)
		if s.Full {
			list = m.Probes
		}
		if len(list) == 0 {
			continue // none of its probes was asked for
		}
		s.say("leak %s (%s): %s", leak.Name, leak.Class, leak.About)
		row, err := s.row(ctx, leak, list)
		if err != nil {
			return m, err
		}
		for _, p := range row.Problems {
			s.say("  PROBLEM: %s", p)
		}
		if row.NotBuilt != "" {
			s.say("  NOT BUILT: %s", row.NotBuilt)
		}
		m.Rows = append(m.Rows, row)
	}
	m.Problems = neverFailed(m)
	return m, nil
}

// hosted are the probes that this backend can host.
func (s Suite) hosted() []probes.Probe {
	return slices.DeleteFunc(slices.Clone(s.Probes), func(p probes.Probe) bool {
		return slices.ContainsFunc(s.Entry.NeverHosts, func(x backends.Exclusion) bool { return x.Probe == p.Name })
	})
}

func (s Suite) expected(leak backends.Leak) []probes.Probe {
	var out []probes.Probe
	for _, p := range s.hosted() {
		if slices.Contains(leak.Expect, p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// base runs everything against the variant without a leak. It has to raise
// nothing: a false alarm there makes every catch worthless.
func (s Suite) base(ctx context.Context, list []probes.Probe) (Row, error) {
	rep, err := s.Run(ctx, nil, list)
	if err != nil {
		return Row{}, err
	}
	if rep.Unavailable {
		return Row{}, fmt.Errorf("calibrate %s: %w: %s", s.Entry.Name, backends.ErrNotAvailable, rep.Notes[0])
	}
	row := Row{Answers: answers(rep)}
	for _, p := range rep.Probes {
		switch {
		case p.Errored:
			row.Problems = append(row.Problems, p.Name+" errored: "+p.ErrorMessage)
		case !p.Passed || p.Verdict != probes.Contained:
			row.Problems = append(row.Problems, fmt.Sprintf("%s raised %s: %s", p.Name, p.Verdict, p.Reason))
		}
	}
	for _, k := range rep.SkippedProbes {
		row.Problems = append(row.Problems, k.Name+" was skipped: "+k.Reason)
	}
	if rep.FinalSandboxState != backends.StateReady {
		row.Problems = append(row.Problems, "the sandbox ended "+string(rep.FinalSandboxState))
	}
	return row, nil
}

func (s Suite) row(ctx context.Context, leak backends.Leak, list []probes.Probe) (Row, error) {
	row := Row{Leak: leak, Answers: map[string]probes.Verdict{}}
	if leak.NeedsOwnHost && !s.OwnHost {
		row.Problems = []string{"not run: it weakens this host; --i-own-this-host allows it"}
		return row, nil
	}
	if err := s.prove(ctx, leak); err != nil {
		if ctx.Err() != nil {
			return row, ctx.Err()
		}
		if errors.Is(err, backends.ErrLeakNotBuilt) {
			row.NotBuilt = err.Error()
			return row, nil
		}
		row.Problems = []string{"not shown to be real: " + err.Error()}
		return row, nil
	}
	rep, err := s.Run(ctx, []string{leak.Name}, list)
	if err != nil {
		return row, err
	}
	row.Answers = answers(rep)
	row.Problems = judge(leak, s.expected(leak), rep)
	return row, nil
}

// prove shows by a check of its own that the leak is there.
func (s Suite) prove(ctx context.Context, leak backends.Leak) (err error) {
	if leak.Prove == nil {
		return errors.New("it has no ground truth")
	}
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	sb, err := s.New([]string{leak.Name})
	if err != nil {
		return err
	}
	defer func() {
		end, stop := context.WithTimeout(context.WithoutCancel(ctx), proveTime)
		defer stop()
		err = errors.Join(err, sb.Shutdown(end))
	}()
	if err := sb.Boot(ctx); err != nil {
		return err
	}
	return leak.Prove(ctx, sb)
}

// judge says what is wrong with the answers to a proven leak. Only escaped and
// weak catch it; an error catches nothing.
func judge(leak backends.Leak, expected []probes.Probe, rep probes.Report) []string {
	var out []string
	caught := false
	for _, want := range expected {
		i := slices.IndexFunc(rep.Probes, func(p probes.Result) bool { return p.Name == want.Name })
		if i < 0 {
			out = append(out, want.Name+" did not run")
			continue
		}
		p := rep.Probes[i]
		if !catches(p) {
			out = append(out, fmt.Sprintf("%s answered %s: %s", p.Name, p.Verdict, p.Reason))
			continue
		}
		caught = caught || string(p.AttackerClass) == leak.Class
	}
	if !caught {
		out = append(out, fmt.Sprintf("no probe of class %s caught it", leak.Class))
	}
	return out
}

func catches(p probes.Result) bool {
	return !p.Errored && (p.Verdict == probes.Escaped || p.Verdict == probes.Weak)
}

// neverFailed names the probes that no leak failed.
func neverFailed(m Matrix) []string {
	var out []string
	for _, p := range m.Probes {
		if !slices.ContainsFunc(m.Rows, func(r Row) bool { v := r.Answers[p.Name]; return v == probes.Escaped || v == probes.Weak }) {
			out = append(out, p.Name+" is failed by no leak")
		}
	}
	return out
}

func answers(rep probes.Report) map[string]probes.Verdict {
	out := map[string]probes.Verdict{}
	for _, p := range rep.Probes {
		out[p.Name] = p.Verdict
		if p.Errored {
			out[p.Name] = probes.Inconclusive
		}
	}
	for _, k := range rep.SkippedProbes {
		out[k.Name] = probes.Skipped
	}
	return out
}

func (s Suite) say(format string, args ...any) {
	if s.Watch != nil {
		s.Watch(format, args...)
	}
}
