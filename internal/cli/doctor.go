package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
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
	var require []string
	var o sandboxOptions
	c := &cobra.Command{
		Use: "doctor", Short: "Say which backends this host can run, and the exact fix for the others", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), o, require, asJSON) },
	}
	c.Flags().StringSliceVar(&require, "require", nil, "judge only these in a comma `LIST` of backends and kvm, fuse; exit 3 if this host lacks one")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().StringVar(&o.agent, "agent", "", "path of the bsm-agent to judge")
	c.Flags().StringVar(&o.image, "image", "", "directory of the guest image to judge")
	return c
}

// facilities are what backends use and a host may have to be prepared for.
func facilities() []backends.Entry {
	judge := func(what, fix string, err error) backends.Diagnosis {
		if err == nil {
			return backends.Diagnosis{Available: true, Findings: []backends.Finding{{OK: true, What: what}}}
		}
		if own := backends.FixOf(err); own != "" {
			fix = own
		}
		return backends.Diagnosis{Findings: []backends.Finding{{What: what + ": " + err.Error(), Fix: fix}}}
	}
	return []backends.Entry{
		{Name: "kvm", Title: "hardware virtualisation", Doctor: func(context.Context, backends.Options) backends.Diagnosis {
			return judge("KVM answers this user", `sudo usermod -aG kvm "$USER", then log in again; or run where there is hardware virtualisation`, hostcheck.KVM())
		}},
		{Name: "fuse", Title: "kernel limit around what probes allocate and fork", Doctor: func(ctx context.Context, _ backends.Options) backends.Diagnosis {
			return judge("a cgroup with memory and pids limits can be made", "see the error", fuse.Available(ctx))
		}},
	}
}

// required picks what --require names.
func (a *App) required(names []string) ([]backends.Entry, error) {
	if len(names) == 0 {
		return a.Backends(), nil
	}
	all := append(a.Backends(), facilities()...)
	valid := make([]string, len(all))
	for i, e := range all {
		valid[i] = e.Name
	}
	var out []backends.Entry
	for _, name := range names {
		if err := oneOf("--require", name, valid...); err != nil {
			return nil, err
		}
		out = append(out, all[slices.Index(valid, name)])
	}
	return out, nil
}

func (a *App) doctor(ctx context.Context, o sandboxOptions, require []string, asJSON bool) error {
	entries, err := a.required(require)
	if err != nil {
		return err
	}
	facts := hostcheck.Collect()
	code := ExitClean
	var list []diagnosis
	for _, e := range entries {
		d := e.Doctor(ctx, backends.Options{Agent: o.agent, Image: o.image, Limits: e.DefaultLimits})
		if err := ctx.Err(); err != nil {
			return findings(err)
		}
		if len(require) > 0 && !d.Available {
			code = ExitUnavailable
		}
		list = append(list, diagnosis{e.Name, e.Title, d})
	}
	if asJSON {
		enc := json.NewEncoder(a.Out)
		enc.SetIndent("", "  ")
		err = enc.Encode(struct {
			Host     hostcheck.Facts `json:"host"`
			Backends []diagnosis     `json:"backends"`
		}{facts, list})
	} else {
		_, err = io.WriteString(a.Out, healthReport(facts, list))
	}
	if err != nil {
		return written(err)
	}
	return silent(code)
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
			fmt.Fprintf(&b, "  %s  %s\n", mark, plain(x.What)) // it may quote a program
			if x.Fix != "" {
				fmt.Fprintf(&b, "        fix: %s\n", plain(x.Fix))
			}
		}
	}
	return b.String()
}
