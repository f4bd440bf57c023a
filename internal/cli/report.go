package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/junit"
	"github.com/brainst0rm/sandbox-redteam/internal/report/markdown"
	"github.com/brainst0rm/sandbox-redteam/internal/report/sarif"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// format is one way to write a report for another reader.
type format struct {
	name, short string
	// encode binds the format's flags to f, and returns what writes a report
	// once they are parsed.
	encode func(f *pflag.FlagSet) func(r probes.Report) ([]byte, error)
}

func formats() []format {
	return []format{
		{"junit", "JUnit XML, for the test views of CI systems", func(*pflag.FlagSet) func(probes.Report) ([]byte, error) { return junit.Encode }},
		{"sarif", "SARIF 2.1.0, for GitHub code scanning", sarifFormat},
		{"markdown", "Markdown, for a person: the job summary", markdownFormat},
	}
}

func sarifFormat(f *pflag.FlagSet) func(probes.Report) ([]byte, error) {
	var o sarif.Options
	f.StringVar(&o.PolicyPath, "policy", "", "policy file of the run, relative to the repository's root: where findings are shown")
	f.StringVar(&o.WorkflowPath, "workflow", sarif.WorkflowFile(os.Getenv("GITHUB_WORKFLOW_REF")), "calling workflow, relative to the repository's root: where they are shown without a policy file")
	return func(r probes.Report) ([]byte, error) {
		for name, p := range map[string]string{"--policy": o.PolicyPath, "--workflow": o.WorkflowPath} {
			if p != "" && !sarif.Usable(p) {
				return nil, usagef("%s %q is not a path in the repository; fix: name it relative to the repository's root", name, p)
			}
		}
		return sarif.Encode(r, o)
	}
}

func markdownFormat(f *pflag.FlagSet) func(probes.Report) ([]byte, error) {
	var o gateOptions
	o.addFlags(f)
	return func(r probes.Report) ([]byte, error) {
		d, err := o.decide(r)
		if err != nil {
			return nil, err
		}
		reasons := make([]string, len(d.Reasons))
		for i, reason := range d.Reasons {
			reasons[i] = reason.Text
		}
		return markdown.Summary(r, markdown.Options{OK: d.OK, Reasons: reasons}), nil
	}
}

func (a *App) reportCommand() *cobra.Command {
	var names []string
	for _, f := range formats() {
		names = append(names, f.name)
	}
	c := &cobra.Command{
		Use: "report", Short: "Write a report in the format of another reader",
		Example: "  bsm-redteam report junit report.json -o junit.xml\n  bsm-redteam report sarif report.json --policy policy.yaml -o report.sarif",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("report needs a format: %s", strings.Join(names, ", "))
			}
			return usagef("unknown format %q; did you mean %q? valid: %s", args[0], nearest.To(args[0], names), strings.Join(names, ", "))
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	for _, f := range formats() {
		c.AddCommand(a.formatCommand(f))
	}
	return c
}

func (a *App) formatCommand(f format) *cobra.Command {
	var out string
	c := &cobra.Command{Use: f.name + " REPORT", Short: f.short, Args: func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("report %s needs one report file, but got %d", f.name, len(args))
		}
		return nil
	}}
	c.Flags().StringVarP(&out, "output", "o", report.Stdout, "file to write, - for stdout")
	encode := f.encode(c.Flags())
	c.RunE = func(_ *cobra.Command, args []string) error {
		r, err := report.ReadFile(args[0])
		if err != nil {
			return usage(err)
		}
		b, err := encode(r)
		if err != nil {
			return usage(err)
		}
		return a.write(out, b)
	}
	return c
}

// write puts b whole into a file, or on stdout.
func (a *App) write(path string, b []byte) error {
	d, err := report.Open(path, a.Out)
	if err != nil {
		return usage(err)
	}
	if err := d.Write(b); err != nil {
		return findings(err)
	}
	return nil
}
