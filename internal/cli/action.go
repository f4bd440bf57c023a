package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/actions"
	"github.com/brainst0rm/sandbox-redteam/internal/gate"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// defaultTimeout ends a run of the Action that nobody bounded.
const defaultTimeout = time.Hour

// GitHub's runner sends SIGINT, after 7.5 s SIGTERM and after 2.5 s more SIGKILL.
// A cancelled run is reported when its sandbox is down, or at the latest after
// patience; what is still there then gets the rest of the time.
const (
	patience  = 4500 * time.Millisecond
	lastCalls = 2 * time.Second
	// A run whose own time is over gets longer than a teardown and a shutdown
	// take.
	timeoutPatience = time.Minute
)

// errTimeout is a cancellation: what did not come to run was interrupted.
var errTimeout = fmt.Errorf("the timeout of the run struck: %w", context.Canceled)

func (a *App) actionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "action", Short: "Be a step of a GitHub workflow: run, report, gate", Args: noArgs,
		Long: "action is what action.yml runs. It reads the inputs from the environment (INPUT_BACKEND, INPUT_FAIL_ON, ...),\n" +
			"attacks the sandbox, writes report.json, junit.xml and report.sarif, and tells the runner the outputs, the\n" +
			"job summary and the annotations. The README has the table of inputs and outputs.",
		Example: "  INPUT_BACKEND=mock INPUT_PROBES=A1 INPUT_REPORT_DIR=reports bsm-redteam action",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.action(cmd.Context()) },
	}
}

// action keeps everything that is printed from being a command of the runner, and
// turns an error into an annotation and an output.
func (a *App) action(ctx context.Context) error {
	job := actions.New(a.Out, os.Getenv)
	fence := actions.NewFence(a.Err)
	fenced := *a
	fenced.Out, fenced.Err = fence, fence
	step := &step{App: &fenced, job: job}
	err := step.run(ctx)
	code, text := codeOf(err)
	if text != "" {
		fenced.say("bsm-redteam: %s", plain(text))
		step.failed(text)
	}
	if err := fence.Flush(); err != nil && code == ExitClean {
		return findings(err)
	}
	return silent(code)
}

// step is one use of the Action.
type step struct {
	*App
	job     *actions.Job
	o       *runOptions
	gate    gate.Options
	timeout time.Duration
	out     *publisher // nil until the inputs are known to be good
}

// run does the work of the step. An error is one that kept it from being done.
func (s *step) run(ctx context.Context) error {
	in, err := s.job.Inputs()
	if err != nil {
		return usage(err)
	}
	if err := s.configure(in); err != nil {
		return usageOfInput(err)
	}
	r, err := s.prepare(s.o)
	if err != nil {
		return usageOfInput(err)
	}
	if s.gate, err = gateOptionsOf(in, r.Backend); err != nil {
		return usageOfInput(err)
	}
	if s.out, err = newPublisher(s.job, s.Version, in[actions.InReportDir], s.o.policy); err != nil {
		return usagef("input %s: %w", actions.InReportDir, err)
	}
	// Before anything that takes time: a run that is killed leaves this.
	if err := s.out.checkpoint(nothingYet(r)); err != nil {
		return findings(err)
	}
	e := s.attend(ctx, r)
	if e.err != nil {
		return e.err
	}
	err = s.conclude(e)
	if e.pending != nil {
		s.abandon(e.pending)
	}
	return err
}

// flagOf names the flag of a run that an input sets. An input that is not set
// leaves the flag's own default.
var flagOf = []struct{ input, flag string }{
	{actions.InBackend, "sandbox"}, {actions.InProbes, "probes"}, {actions.InConfig, "policy"},
	{actions.InFailSeverity, "fail-severity"}, {actions.InOnUnavailable, "on-unavailable"},
	{actions.InIterations, "iterations"}, {actions.InLatBudget, "lat-budget"}, {actions.InBudgets, "budget"},
	{actions.InRawSamples, "raw-samples"}, {actions.InShard, "shard"}, {actions.InVerbose, "verbose"},
}

// configure makes options of the inputs.
func (s *step) configure(in map[string]string) error {
	if in[actions.InBackend] == "" {
		names := make([]string, len(s.Backends()))
		for i, e := range s.Backends() {
			names[i] = e.Name
		}
		return fmt.Errorf("input %s is not set; valid: %s; `bsm-redteam doctor` says which of them this host can run", actions.InBackend, strings.Join(names, ", "))
	}
	var err error
	if s.o, err = runOptionsOf(in); err != nil {
		return err
	}
	s.timeout = defaultTimeout
	if v := in[actions.InTimeout]; v != "" {
		if s.timeout, err = time.ParseDuration(v); err != nil || s.timeout <= 0 {
			return fmt.Errorf("input %s: %q is no positive duration, such as 20m", actions.InTimeout, v)
		}
	}
	return nil
}

func runOptionsOf(in map[string]string) (*runOptions, error) {
	o := newRunOptions()
	flags := pflag.NewFlagSet("action", pflag.ContinueOnError)
	o.addFlags(flags)
	o.onUnavailable = "fail" // a job that tested nothing must not look green
	for _, f := range flagOf {
		values := []string{in[f.input]}
		if flags.Lookup(f.flag).Value.Type() == "stringArray" { // takes one at a time
			values = strings.Split(in[f.input], ",")
		}
		for _, v := range values {
			if v == "" {
				continue
			}
			if err := flags.Set(f.flag, v); err != nil {
				return nil, fmt.Errorf("input %s: %q is not valid: %w", f.input, v, cause(err))
			}
		}
	}
	return o, nil
}

// gateOptionsOf reads the baseline too: one that cannot be compared with is an
// error before anything boots.
func gateOptionsOf(in map[string]string, backend string) (gate.Options, error) {
	allowEmpty := cmp.Or(in[actions.InAllowEmpty], "false")
	if err := oneOf("--allow-empty", allowEmpty, "true", "false"); err != nil {
		return gate.Options{}, err
	}
	o := gateOptions{baseline: in[actions.InBaseline], failOn: cmp.Or(in[actions.InFailOn], string(gate.FailOnFailure)), allowEmpty: allowEmpty == "true"}
	opts, err := o.options()
	if err != nil || opts.Baseline == nil {
		return opts, err
	}
	if err := gate.CheckBaseline(*opts.Baseline, probes.SchemaVersion, backend); err != nil {
		return gate.Options{}, fmt.Errorf("--baseline %s: %w", o.baseline, err)
	}
	return opts, nil
}

// cause is an error of a flag without its name: people know it by another.
func cause(err error) error {
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		return bad.Unwrap()
	}
	return err
}

// usageOfInput names the input instead of the flag that it sets.
func usageOfInput(err error) error {
	text := err.Error()
	flag := leadingFlag.FindStringSubmatch(text)
	if flag == nil {
		return usage(err)
	}
	name := flag[1]
	for _, f := range flagOf {
		if f.flag == name {
			name = f.input
		}
	}
	return usagef("input %s%s", name, text[len(flag[0]):])
}

var leadingFlag = regexp.MustCompile(`^--([a-z-]+)`)

// nothingYet is the report of a run that was killed before it began.
func nothingYet(r *runner.Runner) probes.Report {
	blank := *r
	blank.New = func() (backends.Sandbox, error) { return nil, context.Canceled }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	rep, _ := blank.Run(ctx) // the error is the context's
	return rep
}

// ended is how a run came to its end.
type ended struct {
	rep probes.Report
	err error
	// stopped says why the run was ended early; nil when it was not.
	stopped error
	// pending is closed when a run that was given up has ended after all; nil
	// when nobody waits for one.
	pending <-chan struct{}
}

// attend carries the run out. One that was stopped is not waited for forever: the
// runner kills this process soon, and the report has to be there by then.
func (s *step) attend(parent context.Context, r *runner.Runner) ended {
	ctx, cancel := context.WithCancelCause(parent)
	t := time.AfterFunc(s.timeout, func() { cancel(errTimeout) })
	var e ended
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel(nil)
		defer t.Stop()
		e.rep, e.err = s.carryOut(ctx, r)
		if ctx.Err() != nil {
			e.stopped = context.Cause(ctx)
		}
	}()
	select {
	case <-done:
		return e
	case <-ctx.Done():
	}
	timeout, cancelled := time.After(timeoutPatience), parent.Done()
	for {
		select {
		case <-done:
			return e
		case <-cancelled:
			timeout, cancelled = time.After(patience), nil
		case <-timeout:
			return ended{rep: s.out.giveUp(), stopped: context.Cause(ctx), pending: done}
		}
	}
}

// carryOut equips and runs. What keeps a sandbox from being made is an error of
// every probe, and so in the report.
func (s *step) carryOut(ctx context.Context, r *runner.Runner) (probes.Report, error) {
	k, err := s.equip(ctx, s.o.sandboxOptions, r.Policy)
	if k != nil {
		k.into(r)
	}
	if err != nil {
		r.New = func() (backends.Sandbox, error) { return nil, err }
	}
	p := newProgress(s.Err, s.Terminal)
	r.Watch = func(ev runner.Event) {
		s.out.watch(ev)
		p.event(ev)
	}
	r.OnSandbox = s.out.using
	r.Checkpoint = func(rep probes.Report) {
		if err := s.out.checkpoint(rep); err != nil {
			s.say("bsm-redteam: %s", plain(err.Error())) // the end tries again
		}
	}
	rep, err := r.Run(ctx)
	p.clear()
	if err != nil && ctx.Err() == nil {
		return probes.Report{}, findings(err)
	}
	return rep, nil
}

// abandon shuts the sandbox of a run down that did not end in time. What it does
// not get to is left to `reap`.
func (s *step) abandon(pending <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
	defer cancel()
	if err := s.out.shutdown(ctx); err != nil {
		s.say("bsm-redteam: shut the sandbox down: %s", plain(err.Error()))
	}
	select {
	case <-pending:
	case <-ctx.Done():
	}
}
