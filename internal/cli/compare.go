package cli

import (
	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/internal/compare"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
)

type compareOptions struct {
	format      string
	maxSlowdown float64
}

func (a *App) compareCommand() *cobra.Command {
	var o compareOptions
	c := &cobra.Command{
		Use: "compare BASE HEAD", Short: "Say what changed between two reports of the same backend",
		Long: "compare names what is worse in HEAD than in BASE, what is better, new or gone, which latencies\n" +
			"shifted, and what cannot be told and why. Exit: 0 nothing is worse, 1 a regression, 2 the reports\n" +
			"cannot be compared. A latency shift is reported only, unless --max-slowdown says how much is too\n" +
			"much: two runs that were not interleaved cannot name its cause. bsm-redteam ab can.",
		Example: "  bsm-redteam compare main.json report.json --format markdown",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("compare needs two report files, BASE and HEAD, but got %d", len(args))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.compare(args[0], args[1], o) },
	}
	c.Flags().StringVar(&o.format, "format", "text", "`FORMAT` of the answer: text, markdown or json")
	c.Flags().Float64Var(&o.maxSlowdown, "max-slowdown", 0, "`PERCENT` beyond the base's interval at which a slower latency is a regression; 0 only reports it")
	return c
}

func (a *App) compare(base, head string, o compareOptions) error {
	if err := oneOf("--format", o.format, compare.Formats()...); err != nil {
		return err
	}
	if !(o.maxSlowdown >= 0) {
		return usagef("--max-slowdown %v: not a percentage of 0 or more", o.maxSlowdown)
	}
	b, err := report.ReadFile(base)
	if err != nil {
		return usagef("base: %w", err)
	}
	h, err := report.ReadFile(head)
	if err != nil {
		return usagef("head: %w", err)
	}
	c, err := compare.Compare(b, h, compare.Options{MaxSlowdown: o.maxSlowdown / 100})
	if err != nil {
		return usage(err)
	}
	out, err := c.Render(o.format)
	if err != nil {
		return findings(err)
	}
	if _, err := a.Out.Write(out); err != nil {
		return written(err)
	}
	if len(c.Regressions) > 0 {
		return silent(ExitFindings)
	}
	return nil
}
