package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

func (a *App) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain PROBE", Short: "Say what a probe attacks, what a pass proves and what it does not",
		Example: "  bsm-redteam explain P-A1-net-egress",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("explain needs the name of one probe; `bsm-redteam list` has them")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, p := range a.Probes() {
				names = append(names, p.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := probecatalog.Find(a.Probes(), args[0])
			if err != nil {
				return usage(err)
			}
			_, err = io.WriteString(a.Out, explain(p))
			return written(err)
		},
	}
}

func explain(p probes.Probe) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s (class %s, %s)\n", p.Name, p.Class, p.Expectation)
	section := func(title, text string) {
		if text != "" {
			fmt.Fprintf(&b, "\n%s\n%s\n", title, wrap(text, 92))
		}
	}
	section("Attack", p.Description)
	section("What a pass proves", p.Why)
	section("What it does not prove", p.Limits)
	if p.Harm != "" {
		section("If it escapes", fmt.Sprintf("%s, severity %s", p.Harm, p.Severity))
	}
	section("Side effects", join(p.SideEffects))
	section("Needs", join(p.Needs))
	section("Techniques", strings.Join(append(append([]string{}, p.Techniques...), p.ATTACK...), ", "))
	section("References", strings.Join(p.References, "; "))
	return b.String()
}

func join[T ~string](list []T) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = string(v)
	}
	return strings.Join(parts, ", ")
}

// wrap breaks text into indented lines of at most width columns.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case column == 0:
			b.WriteString("  ")
			column = 2
		case column+1+len(word) > width:
			b.WriteString("\n  ")
			column = 2
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
