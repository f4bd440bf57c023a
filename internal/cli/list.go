package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

func (a *App) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List backends, their leaks, batteries and probes", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return a.list() },
	}
}

func (a *App) list() error {
	w := tabwriter.NewWriter(a.Out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BACKEND\t\tLEAKS")
	for _, e := range a.Backends() {
		var leaks []string
		for _, l := range e.Leaks {
			leaks = append(leaks, l.Name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", e.Name, e.Title, strings.Join(leaks, " "))
	}
	fmt.Fprintf(w, "\nBATTERIES\t%s\n\nPROBE\tCLASS\tHARM\n", strings.Join(probecatalog.Batteries(), ", "))
	for _, p := range a.Probes() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Class, p.Harm)
	}
	return written(w.Flush())
}

// written makes a failed write to stdout the exit code that it deserves.
func written(err error) error {
	if err != nil {
		return findings(fmt.Errorf("write output: %w", err))
	}
	return nil
}
