package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/actions"
	"github.com/brainst0rm/sandbox-redteam/internal/gate"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/junit"
	"github.com/brainst0rm/sandbox-redteam/internal/report/markdown"
	"github.com/brainst0rm/sandbox-redteam/internal/report/sarif"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// publisher keeps the report of a step on disk, in every format, and its outputs
// with the runner while the run goes on, so that whatever ends this process leaves
// both, and no file of an earlier run beside them.
type publisher struct {
	job     *actions.Job
	version string
	paths   actions.Paths
	place   sarif.Options

	mu      sync.Mutex
	newest  probes.Report
	running string // the probe that is at it
	sandbox backends.Sandbox
	closed  bool // the run was given up: what it still finds comes too late
}

func newPublisher(job *actions.Job, version, dir, policy string) (*publisher, error) {
	dir, err := job.ReportDir(dir)
	if err != nil {
		return nil, err
	}
	return &publisher{job: job, version: version, paths: actions.Paths{
		Dir: dir, JSON: filepath.Join(dir, "report.json"), JUnit: filepath.Join(dir, "junit.xml"), SARIF: filepath.Join(dir, "report.sarif"),
	}, place: sarif.Options{PolicyPath: job.Relative(policy), WorkflowPath: sarif.WorkflowFile(os.Getenv("GITHUB_WORKFLOW_REF"))}}, nil
}

// checkpoint keeps the report so far.
func (p *publisher) checkpoint(rep probes.Report) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.newest = rep
	checked, err := p.write(rep)
	if err != nil {
		return err
	}
	if err := p.render(checked, true); err != nil {
		return err
	}
	_, err = p.outputs(actions.Cancelled, checked, gate.Decision{})
	return err
}

// watch keeps which probe is running.
func (p *publisher) watch(e runner.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = ""
	if e.Result == nil && e.Skipped == nil {
		p.running = e.Probe
	}
}

// using keeps the sandbox that the run goes on with.
func (p *publisher) using(sb backends.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sandbox = sb
}

// giveUp returns the report so far and takes no other.
func (p *publisher) giveUp() probes.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for i := range p.newest.SkippedProbes {
		if sk := &p.newest.SkippedProbes[i]; sk.Name == p.running {
			sk.Reason = "interrupted while it ran, and did not end in time"
		}
	}
	return p.newest
}

// shutdown ends the sandbox of a run that was given up.
func (p *publisher) shutdown(ctx context.Context) error {
	p.mu.Lock()
	sb := p.sandbox
	p.mu.Unlock()
	if sb == nil {
		return nil
	}
	return sb.Shutdown(ctx)
}

// write writes report.json and returns what a reader of it gets: everything
// else that a step says is made of that.
func (p *publisher) write(rep probes.Report) (probes.Report, error) {
	b, err := report.Encode(rep)
	if err != nil {
		return probes.Report{}, err
	}
	if err := put(p.paths.JSON, b); err != nil {
		return probes.Report{}, err
	}
	checked, err := report.Read(b)
	if err != nil {
		return probes.Report{}, fmt.Errorf("the report cannot be read back: %w", err)
	}
	checked.Unavailable = rep.Unavailable
	return checked, nil
}

// render writes the report in the formats of others.
func (p *publisher) render(rep probes.Report, partial bool) error {
	x, err := junit.Encode(rep)
	if err == nil {
		err = put(p.paths.JUnit, x)
	}
	place := p.place
	place.Partial = partial
	b, sarifErr := sarif.Encode(rep, place)
	if sarifErr == nil {
		sarifErr = put(p.paths.SARIF, b)
	}
	return errors.Join(err, sarifErr)
}

// put replaces a file at once and whole. A link in its place is replaced and not
// followed: report-dir may lie in a checkout, and so hold what others put there.
func put(path string, b []byte) error {
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	d, err := report.Open(path, nil)
	if err != nil {
		return err
	}
	return d.Write(b)
}

// outputs tells the runner the outputs.
func (p *publisher) outputs(v actions.Verdict, rep probes.Report, d gate.Decision) (wanted bool, err error) {
	c := actions.Counts{Passed: rep.Summary.Passed, Failed: rep.Summary.Failed, Errored: rep.Summary.Errored, Skipped: rep.Summary.Skipped, Regressions: -1}
	for _, r := range rep.Probes {
		if r.ValidatedAgainst == probes.MockOnly {
			c.MockOnly++
		}
	}
	if d.Compared {
		c.Regressions = d.Regressions
	}
	return p.job.SetOutputs(actions.Outputs{Verdict: v, Counts: &c, Paths: p.paths, Version: p.version})
}

// conclude decides on the report, publishes everything and chooses the exit code.
func (s *step) conclude(e ended) error {
	rep, err := s.out.write(e.rep)
	if err != nil {
		return findings(err)
	}
	d, err := gate.Gate(rep, s.gate)
	if err != nil {
		return usagef("input %s: %w", actions.InBaseline, err)
	}
	verdict, code := s.judge(rep, e.stopped, &d)
	errs := []error{s.tell(verdict, rep, d), s.out.render(rep, e.stopped != nil)}
	s.show(rep)
	s.log(d)
	for _, line := range rep.SummaryLines() {
		s.say("%s", line)
	}
	s.say("reports written to %s", plain(s.out.paths.Dir))
	errs = append(errs, s.job.Annotate(annotations(d, s.job.Relative(s.o.policy))))
	if err := errors.Join(errs...); err != nil {
		return findings(err)
	}
	return silent(code)
}

// judge names the end of the step, and adds to the decision what only the run
// knows: that it was stopped, or that nothing could be run.
func (s *step) judge(rep probes.Report, stopped error, d *gate.Decision) (actions.Verdict, int) {
	refuse := func(kind gate.Kind, text string) {
		if d.OK {
			d.Reasons = nil
		}
		d.OK = false
		d.Reasons = slices.Insert(d.Reasons, 0, gate.Reason{Kind: kind, Backend: rep.Backend, Text: text})
	}
	switch {
	case errors.Is(stopped, errTimeout):
		refuse(gate.KindStopped, fmt.Sprintf("the run was stopped after its timeout of %s; the report is partial", s.timeout))
		return actions.TimedOut, ExitFindings
	case stopped != nil:
		refuse(gate.KindStopped, "the run was cancelled; the report is partial")
		return actions.Cancelled, ExitFindings
	case rep.Unavailable && s.o.onUnavailable == "fail":
		refuse(gate.KindMissing, rep.Notes[0])
		return actions.Unavailable, ExitUnavailable
	case !d.OK:
		return actions.Failed, ExitFindings
	case len(rep.Probes) == 0:
		return actions.Skipped, ExitClean
	}
	return actions.Passed, ExitClean
}

// tell gives the runner outputs and summary.
func (s *step) tell(v actions.Verdict, rep probes.Report, d gate.Decision) error {
	wanted, err := s.out.outputs(v, rep, d)
	if !wanted {
		s.say("GITHUB_OUTPUT is not set: the outputs were not written")
	}
	o := markdown.Options{OK: d.OK}
	for _, r := range d.Reasons {
		o.Reasons = append(o.Reasons, r.Text)
	}
	for _, w := range d.Warnings {
		if w.Kind != gate.KindMock && w.Kind != gate.KindLeaks { // the summary shouts these by itself
			o.Warnings = append(o.Warnings, w.Text)
		}
	}
	wanted, sumErr := s.job.Summary(markdown.Summary(rep, o))
	if !wanted {
		s.say("GITHUB_STEP_SUMMARY is not set: the job summary was not written")
	}
	return errors.Join(err, sumErr)
}

// log says each reason and warning in one line.
func (s *step) log(d gate.Decision) {
	word := "gate passed: "
	if !d.OK {
		word = "gate failed: "
	}
	for _, r := range d.Reasons {
		s.say("%s%s", word, plain(r.Text))
	}
	for _, w := range d.Warnings {
		s.say("warning: %s", plain(w.Text))
	}
}

// failed tells the runner that the step could not be done.
func (s *step) failed(text string) {
	o := actions.Outputs{Verdict: actions.Errored, Version: s.Version}
	if s.out != nil {
		o.Paths = s.out.paths
	}
	_, err := s.job.SetOutputs(o)
	err = errors.Join(err, s.job.Annotate([]actions.Annotation{{Level: actions.Error, Title: "bsm-redteam", Message: text}}))
	if err != nil {
		s.say("bsm-redteam: %s", plain(err.Error()))
	}
}
