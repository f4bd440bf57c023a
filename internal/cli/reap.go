package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

func (a *App) reapCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "reap", Short: "Remove what killed runs left behind, and nothing that is not ours", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.reap(cmd.Context(), dir) },
	}
	c.Flags().StringVar(&dir, "ledger", "", "directory of the ledger (default: this user's)")
	return c
}

func (a *App) reap(ctx context.Context, dir string) error {
	l, err := ledger.Open(dir)
	if err != nil {
		return findings(err)
	}
	list, err := l.Reap(ctx)
	failed := 0
	for _, r := range list {
		what := fmt.Sprintf("%s %s", r.Kind, r.Target)
		if r.PID > 0 {
			what += fmt.Sprintf(" (pid %d)", r.PID)
		}
		if r.Err != nil {
			failed++
			a.say("%s", plain(fmt.Sprintf("bsm-redteam: left %s: %s", what, r.Err)))
			continue
		}
		if _, err := fmt.Fprintln(a.Out, plain("removed "+what)); err != nil {
			return written(err)
		}
	}
	if err != nil {
		return findings(err)
	}
	if failed > 0 {
		return findings(fmt.Errorf("%d resources could not be removed", failed))
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.Out, "nothing to remove")
		return written(err)
	}
	return nil
}
