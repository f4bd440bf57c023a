package cli

import (
	"fmt"
	"io"
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
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "BACKEND\tWHAT IT IS")
	for _, e := range a.Backends() {
		fmt.Fprintf(w, "%s\t%s\n", e.Name, e.Title)
	}
	fmt.Fprintln(w, "\nPROBE\tCLASS\tHARM")
	for _, p := range a.Probes() {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Class, p.Harm)
	}
	if err := w.Flush(); err != nil {
		return written(err)
	}
	fmt.Fprintf(&b, "\nbatteries: %s\n", strings.Join(probecatalog.Batteries(), ", "))
	for _, e := range a.Backends() {
		if len(e.Leaks) == 0 {
			continue
		}
		names := make([]string, len(e.Leaks))
		for i, l := range e.Leaks {
			names[i] = l.Name
		}
		fmt.Fprintf(&b, "\nleaks of %s\n%s\n", e.Name, wrap(strings.Join(names, " "), 92))
	}
	_, err := io.WriteString(a.Out, b.String())
	return written(err)
}

// written makes a failed write to stdout the exit code that it deserves.
func written(err error) error {
	if err != nil {
		return findings(fmt.Errorf("write output: %w", err))
	}
	return nil
}
