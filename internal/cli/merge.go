package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/merge"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func (a *App) mergeCommand() *cobra.Command {
	var output, expect string
	c := &cobra.Command{
		Use: "merge REPORT...", Short: "Join the reports of shards and backends into one",
		Long: "merge joins reports of shards (--shard) and of several backends into one report. It refuses reports\n" +
			"that do not belong together: a missing shard, two answers to one probe, other versions, policies or\n" +
			"images within one backend, a backend of --expect without a report. It judges nothing: bsm-redteam gate does. Exit: 0 merged, 1 not written, 2 refused.",
		Example: "  bsm-redteam merge shard-*.json -o report.json\n" +
			"  bsm-redteam merge --expect chv,vf reports/*.json -o release.json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("merge needs at least one report file")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var names []string
			if c.Flags().Changed("expect") { // an empty list is a mistake, not nothing to expect
				names = strings.Split(expect, ",")
			}
			return a.merge(args, names, output)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "`FILE` for the merged report, - for stdout")
	c.Flags().StringVar(&expect, "expect", "", "comma `LIST` of the backends that must each have a report")
	return c
}

func (a *App) merge(paths, expect []string, output string) error {
	var list []merge.Input
	for _, path := range paths {
		r, b, err := report.ReadFileBytes(path)
		if err != nil {
			return usage(err)
		}
		list = append(list, merge.NewInput(path, r, b))
	}
	rep, err := merge.Merge(list)
	if err != nil {
		return usagef("merge: %s", plain(err.Error()))
	}
	if err := a.expected(rep, expect); err != nil {
		return err
	}
	b, err := report.Encode(rep)
	if err != nil {
		return findings(err)
	}
	if _, err := report.Read(b); err != nil {
		return usagef("merge: the joined report is not whole: %s", plain(err.Error()))
	}
	dest, err := a.destination(output)
	if err != nil {
		return usage(err)
	}
	if dest != nil {
		defer dest.Discard()
		if err := dest.Write(b); err != nil {
			return findings(err)
		}
	}
	shown := plainReport(rep)
	a.show(shown)
	if dest != nil && output != "" && output != report.Stdout {
		a.say("report written to %s", output)
	}
	for _, line := range shown.SummaryLines() {
		a.say("%s", line)
	}
	a.say("merged from %d reports", len(rep.MergedFrom))
	return nil
}

// expected refuses a merged report without a run on each of the backends names.
func (a *App) expected(rep probes.Report, names []string) error {
	var there, missing []string
	for _, m := range rep.MergedFrom {
		there = append(there, m.Backend)
	}
	for _, name := range names {
		entry, err := backendcatalog.Lookup(a.Backends(), name)
		switch {
		case slices.Contains(there, name), name == "mock" && slices.Contains(there, "stub"):
		case err != nil:
			return usagef("merge --expect: %w", err)
		default:
			missing = append(missing, entry.Name)
		}
	}
	if len(missing) > 0 {
		return usagef("merge: no report is of backend %s; fix: run it, give its report, or take it out of --expect", strings.Join(missing, ", "))
	}
	return nil
}

// plainReport is r with every text that a table shows made plain: a report file
// may come from anywhere.
func plainReport(r probes.Report) probes.Report {
	out := r
	out.Probes, out.SkippedProbes, out.Notes = nil, nil, nil
	for _, p := range r.Probes {
		p.Backend, p.Name, p.Reason, p.ErrorMessage = plain(p.Backend), plain(p.Name), plain(p.Reason), plain(p.ErrorMessage)
		p.ValidatedAgainst, p.Verdict, p.Severity = plain(p.ValidatedAgainst), probes.Verdict(plain(string(p.Verdict))), probes.Severity(plain(string(p.Severity)))
		if p.Witness != nil {
			p.Witness = &probes.Witness{Kind: plain(p.Witness.Kind), Summary: plain(p.Witness.Summary)}
		}
		out.Probes = append(out.Probes, p)
	}
	for _, s := range r.SkippedProbes {
		s.Backend, s.Name, s.Reason = plain(s.Backend), plain(s.Name), plain(s.Reason)
		out.SkippedProbes = append(out.SkippedProbes, s)
	}
	for _, n := range r.Notes {
		out.Notes = append(out.Notes, plain(n))
	}
	out.Latency = map[string]probes.Distribution{}
	for k, d := range r.Latency {
		out.Latency[plain(k)] = d
	}
	return out
}
