package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/brainst0rm/sandbox-redteam/internal/gate"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

type gateOptions struct {
	baseline, failOn string
	allowEmpty       bool
}

func (a *App) gateCommand() *cobra.Command {
	var o gateOptions
	c := &cobra.Command{
		Use: "gate REPORT", Short: "Turn a report into a job's success or failure",
		Example: "  bsm-redteam gate report.json --baseline main.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("gate needs one report file, but got %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.gate(args[0], o) },
	}
	o.addFlags(c.Flags())
	return c
}

func (o *gateOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.baseline, "baseline", "", "earlier report of the same backend to compare with")
	f.StringVar(&o.failOn, "fail-on", string(gate.FailOnFailure), "failure (includes regressions), regression or never")
	f.BoolVar(&o.allowEmpty, "allow-empty", false, "accept a report in which everything was skipped")
}

// options checks the flags and reads the baseline.
func (o *gateOptions) options() (gate.Options, error) {
	if err := oneOf("--fail-on", o.failOn, gate.FailOns()...); err != nil {
		return gate.Options{}, err
	}
	opts := gate.Options{FailOn: gate.FailOn(o.failOn), AllowEmpty: o.allowEmpty}
	if o.baseline != "" {
		base, err := report.ReadFile(o.baseline)
		if err != nil {
			return gate.Options{}, usagef("--baseline: %w", err)
		}
		opts.Baseline = &base
	}
	if err := opts.Validate(); err != nil {
		return gate.Options{}, usagef("--fail-on: %w", err)
	}
	return opts, nil
}

// decide puts r through the gate.
func (o *gateOptions) decide(r probes.Report) (gate.Decision, error) {
	opts, err := o.options()
	if err != nil {
		return gate.Decision{}, err
	}
	d, err := gate.Gate(r, opts)
	if err != nil {
		return gate.Decision{}, usagef("--baseline %s: %w", o.baseline, err)
	}
	return d, nil
}

func (a *App) gate(path string, o gateOptions) error {
	r, err := report.ReadFile(path)
	if err != nil {
		return usage(err)
	}
	d, err := o.decide(r)
	if err != nil {
		return err
	}
	word, code := "gate passed: ", ExitClean
	if !d.OK {
		word, code = "gate failed: ", ExitFindings
	}
	// A report may come from anywhere: its texts are not ours to trust.
	for _, reason := range d.Reasons {
		if _, err := io.WriteString(a.Out, fmt.Sprintln(word+plain(reason.Text))); err != nil {
			return written(err)
		}
	}
	for _, w := range d.Warnings {
		if _, err := io.WriteString(a.Out, fmt.Sprintln("warning: "+plain(w.Text))); err != nil {
			return written(err)
		}
	}
	return silent(code)
}
