package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// sandboxOptions choose and configure a backend; several verbs share them.
type sandboxOptions struct {
	sandbox         string
	agent, image    string
	policy          string
	baseline        string
	requireBaseline bool
	verbose         bool
}

func (o *sandboxOptions) addFlags(f *pflag.FlagSet) {
	o.addMachineFlags(f)
	f.StringVar(&o.policy, "policy", "", "YAML `FILE` with the declared boundary (default: the backend's own)")
}

// addMachineFlags are those of a verb that has more than one policy.
func (o *sandboxOptions) addMachineFlags(f *pflag.FlagSet) {
	f.StringVar(&o.sandbox, "sandbox", "mock", "backend `NAME` to attack; see bsm-redteam list")
	f.StringVar(&o.agent, "agent", "", "bsm-agent `FILE` to run inside (default: found or built)")
	f.StringVar(&o.image, "image", "", "built guest image in `DIR` (default: found or built)")
	f.StringVar(&o.baseline, "baseline", "", "persisted baseline `FILE` to check resets against")
	f.BoolVar(&o.requireBaseline, "require-baseline", false, "refuse to run without a persisted baseline")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log what the harness does")
}

// runOptions are the flags of a run.
type runOptions struct {
	sandboxOptions
	probes          string
	shard           string
	output          string
	iterations      int
	leaks           []string
	budgets         []string
	failSeverity    string
	onUnavailable   string
	latBudget       time.Duration
	rawSamples      bool
	ownHost         bool
	allowDisruptive bool
}

func newRunOptions() *runOptions { return &runOptions{} }

func (o *runOptions) addFlags(f *pflag.FlagSet) {
	f.SortFlags = false
	o.sandboxOptions.addFlags(f)
	f.StringVar(&o.probes, "probes", "all", "comma `LIST` of batteries (adversarial, lat, all), classes and probe names")
	f.StringVar(&o.shard, "shard", "", "run only part `I/N` of the selected probes; bsm-redteam merge joins the parts")
	f.StringVarP(&o.output, "output", "o", "", "`FILE` for the JSON report, - for stdout")
	f.IntVar(&o.iterations, "iterations", 1000, "`N` samples of each latency probe")
	f.StringArrayVar(&o.leaks, "leak", nil, "build the deliberate weakness `NAME` in (repeatable); the battery must catch it")
	f.StringArrayVar(&o.budgets, "budget", nil, "upper `BOUND` such as P-LAT-reset.p50=500ms (repeatable)")
	f.StringVar(&o.failSeverity, "fail-severity", string(probes.SeverityMedium), "lowest `SEVERITY` at which a weakness fails its probe")
	f.StringVar(&o.onUnavailable, "on-unavailable", "skip", "what an unavailable backend leads to: `skip|fail` (exit 0 or 3)")
	f.DurationVar(&o.latBudget, "lat-budget", 0, "`TIME` cap of each latency probe; it then reports fewer samples")
	f.BoolVar(&o.rawSamples, "raw-samples", false, "keep every latency sample in the report")
	f.BoolVar(&o.ownHost, "i-own-this-host", false, "allow leaks that weaken this host while they run")
	f.BoolVar(&o.allowDisruptive, "allow-disruptive", false, "let probes fork, allocate, signal and write in a sandbox that is yours")
}

// check refuses values before anything boots.
func (o *runOptions) check() error {
	if o.iterations < 1 {
		return usagef("--iterations %d: at least 1 is needed", o.iterations)
	}
	if o.latBudget < 0 {
		return usagef("--lat-budget %s: a time cap cannot be negative", o.latBudget)
	}
	if err := oneOf("--on-unavailable", o.onUnavailable, "skip", "fail"); err != nil {
		return err
	}
	severities := make([]string, 0, len(probes.Severities()))
	for _, s := range probes.Severities() {
		severities = append(severities, string(s))
	}
	return oneOf("--fail-severity", o.failSeverity, severities...)
}

// split takes the part of list that --shard asks for. nil is the whole.
func (o *runOptions) split(list []probes.Probe) ([]probes.Probe, *probes.Shard, error) {
	if o.shard == "" {
		return list, nil, nil
	}
	s, err := probes.ParseShard(o.shard)
	if err != nil {
		return nil, nil, usagef("--shard %w", err)
	}
	if s.Of > len(list) {
		return nil, nil, usagef("--shard %s: only %d probes are selected, so some shards would test nothing; fix: at most %d shards", s, len(list), len(list))
	}
	for _, p := range list {
		s.Selected = append(s.Selected, p.Name)
	}
	return probes.Part(s, list), &s, nil
}

func oneOf(flag, value string, valid ...string) error {
	if slices.Contains(valid, value) {
		return nil
	}
	return usagef("%s %q: did you mean %q? valid: %s", flag, value, nearest.To(value, valid), strings.Join(valid, ", "))
}

// parseBudgets reads bounds such as P-LAT-reset.p50=500ms. They may name only
// latency probes.
func parseBudgets(list []string, all []probes.Probe) ([]probes.Budget, error) {
	var names []string
	for _, p := range all {
		if p.Class == probes.ClassLatency {
			names = append(names, p.Name)
		}
	}
	var out []probes.Budget
	for _, s := range list {
		b, err := parseBudget(s, names)
		if err != nil {
			return nil, usagef("--budget %q: %w", s, err)
		}
		out = append(out, b)
	}
	return out, nil
}

func parseBudget(s string, names []string) (probes.Budget, error) {
	left, limit, ok := strings.Cut(s, "=")
	dot := strings.LastIndexByte(left, '.')
	if !ok || dot < 0 {
		return probes.Budget{}, fmt.Errorf("want NAME.pNN=DURATION, such as P-LAT-reset.p50=500ms")
	}
	name, percentile := left[:dot], left[dot+1:]
	if !slices.Contains(names, name) {
		return probes.Budget{}, fmt.Errorf("no latency probe %q; did you mean %q? valid: %s", name, nearest.To(name, names), strings.Join(names, ", "))
	}
	valid := []string{"p50", "p90", "p95", "p99"}
	if !slices.Contains(valid, percentile) {
		return probes.Budget{}, fmt.Errorf("no percentile %q; did you mean %q? valid: %s", percentile, nearest.To(percentile, valid), strings.Join(valid, ", "))
	}
	n, err := strconv.Atoi(percentile[1:])
	if err != nil {
		return probes.Budget{}, fmt.Errorf("percentile %q: %w", percentile, err)
	}
	d, err := time.ParseDuration(limit)
	if err != nil || d <= 0 {
		return probes.Budget{}, fmt.Errorf("%q is no positive duration, such as 500ms", limit)
	}
	return probes.Budget{Probe: name, Percentile: n, Max: d}, nil
}
