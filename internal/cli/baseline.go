package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

func (a *App) baselineCommand() *cobra.Command {
	c := &cobra.Command{Use: "baseline", Short: "Record what a reset is checked against", Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("baseline needs a verb: record") }}
	var o sandboxOptions
	var out string
	record := &cobra.Command{
		Use: "record", Short: "Boot a sandbox, verify a reset and keep its golden state's figures", Args: noArgs,
		Example: "  bsm-redteam baseline record --sandbox qemu -o qemu-baseline.json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.baselineRecord(cmd.Context(), o, out) },
	}
	o.addFlags(record.Flags())
	record.Flags().StringVarP(&out, "output", "o", "", "file for the baseline (mode 0600)")
	c.AddCommand(record)
	return c
}

func (a *App) baselineRecord(ctx context.Context, o sandboxOptions, out string) error {
	if out == "" {
		return usagef("baseline record needs --output FILE")
	}
	if o.baseline != "" || o.requireBaseline {
		return usagef("baseline record makes a baseline; --baseline and --require-baseline are for runs")
	}
	entry, err := backendcatalog.Lookup(a.Backends(), o.sandbox)
	if err != nil {
		return usagef("--sandbox: %w", err)
	}
	pol, err := loadPolicy(o.policy, entry)
	if err != nil {
		return usagef("--policy: %w", err)
	}
	k, err := a.equip(ctx, o, pol)
	if err != nil {
		return err
	}
	f, err := k.record(ctx)
	if errors.Is(err, backends.ErrNotAvailable) {
		return &exitError{ExitUnavailable, err}
	}
	if err == nil {
		err = baseline.Record(out, f)
	}
	if err != nil {
		return findings(err)
	}
	a.say("baseline of %s written to %s", entry.Name, out)
	return nil
}

// record boots a sandbox, lets a reset verify it, and takes the figures that
// the verification compared with.
func (k *kit) record(ctx context.Context) (f baseline.File, err error) {
	sb, err := k.new(nil)
	if err != nil {
		return f, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, sb.Shutdown(end))
	}()
	if err := sb.Boot(ctx); err != nil {
		return f, err
	}
	p, ok := sb.(backends.Provenancer)
	if !ok {
		return f, fmt.Errorf("the %s backend does not say what it runs, so its baseline could not be told from another's", k.entry.Name)
	}
	state, err := sb.Reset(ctx)
	if err != nil {
		return f, err
	}
	d, prov := state.VerificationDetails, p.Provenance()
	id := baseline.Identity{Backend: sb.Backend(), VMMVersion: prov.VMMVersion, Digests: map[string]string{}}
	for _, role := range []string{"kernel", "initramfs", "rootfs", "agent"} {
		if sum, ok := prov.Digests[role]; ok {
			id.Digests[role] = sum
		}
	}
	return baseline.File{Version: baseline.Version, RecordedAt: time.Now().UTC(), Identity: id,
		Baseline: integrity.Baseline{FSHash: d.FSHashBaseline, OpenFDCount: d.OpenFDCountBaseline, VMMState: d.ExpectedVMMAPIState}}, nil
}
