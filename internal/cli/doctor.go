package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
)

// diagnosis is the doctor's answer for one backend.
type diagnosis struct {
	Backend string `json:"backend"`
	Title   string `json:"title"`
	backends.Diagnosis
}

func (a *App) doctorCommand() *cobra.Command {
	var asJSON bool
	var o sandboxOptions
	c := &cobra.Command{
		Use: "doctor", Short: "Say which backends this host can run, and the exact fix for the others", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), o, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&o.agent, "agent", "", "path of the bsm-agent to judge")
	c.Flags().StringVar(&o.image, "image", "", "directory of the guest image to judge")
	return c
}

func (a *App) doctor(ctx context.Context, o sandboxOptions, asJSON bool) error {
	facts := hostcheck.Collect()
	var list []diagnosis
	for _, e := range a.Backends() {
		d := e.Doctor(ctx, backends.Options{Agent: o.agent, Image: o.image, Limits: e.DefaultLimits})
		if err := ctx.Err(); err != nil {
			return findings(err)
		}
		list = append(list, diagnosis{e.Name, e.Title, d})
	}
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		return written(enc.Encode(struct {
			Host     hostcheck.Facts `json:"host"`
			Backends []diagnosis     `json:"backends"`
		}{facts, list}))
	}
	_, err := io.WriteString(a.Out, healthReport(facts, list))
	return written(err)
}

func healthReport(f hostcheck.Facts, list []diagnosis) string {
	var b strings.Builder
	fmt.Fprintf(&b, "host: %s/%s, kernel %s, %d CPUs", f.OS, f.Arch, f.Kernel, f.CPUs)
	for _, s := range []struct{ name, value string }{{"cgroup", f.Cgroup}, {"lsm", strings.Join(f.LSM, ",")}, {"yama", f.Yama}, {"userns", f.Userns}, {"virtualised", f.Virtualised}} {
		if s.value != "" {
			fmt.Fprintf(&b, ", %s %s", s.name, s.value)
		}
	}
	b.WriteString("\n")
	for _, d := range list {
		word := "unavailable"
		if d.Available {
			word = "available"
		}
		fmt.Fprintf(&b, "\n%s (%s): %s\n", d.Backend, d.Title, word)
		for _, x := range d.Findings {
			mark := "ok  "
			switch {
			case !x.OK && x.Optional:
				mark = "note"
			case !x.OK:
				mark = "FAIL"
			}
			fmt.Fprintf(&b, "  %s  %s\n", mark, x.What)
			if x.Fix != "" {
				fmt.Fprintf(&b, "        fix: %s\n", x.Fix)
			}
		}
	}
	return b.String()
}
