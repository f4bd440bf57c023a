// Package probes defines what an experiment on a boundary is, what it may
// answer, and how answers add up to a verdict.
//
// A probe attacks from inside and is judged from outside. Three things have to
// come together before it may say "contained": the payload proved that it ran
// inside and can work (proof), the same payload did harm where the boundary is
// absent (control), and a host-side witness that is known to be alive saw
// nothing. Any one of them missing makes the answer "inconclusive". What the
// sandbox says of itself is evidence, never the verdict.
package probes

import (
	"context"
	"log/slog"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
)

// Class is the attacker class of the threat model, with the seed's values.
type Class string

// The classes that the batteries use. A4 and A5 carry the seed's labels; that
// they test limits of the runtime is said in their descriptions.
const (
	ClassNetEgress       Class = "A1"
	ClassFSEscape        Class = "A2"
	ClassProcessEscape   Class = "A3"
	ClassExhaustion      Class = "A4"
	ClassTimeBomb        Class = "A5"
	ClassSubstrate       Class = "A6"
	ClassStdoutInjection Class = "A7"
	ClassChannelPoison   Class = "A8"
	ClassLatency         Class = "LAT"
)

// Expectation says which way the payload is meant to end.
type Expectation string

// An attack should fail; a latency measurement should pass.
const (
	ShouldFail Expectation = "should-fail"
	ShouldPass Expectation = "should-pass"
)

// Severity grades a finding. The order is Info < Low < Medium < High < Critical.
type Severity string

// The severities.
const (
	SeverityInfo     Severity = "info"
	SeverityLow      Severity = "low"
	SeverityMedium   Severity = "medium"
	SeverityHigh     Severity = "high"
	SeverityCritical Severity = "critical"
)

// Severities lists them in rising order.
func Severities() []Severity {
	return []Severity{SeverityInfo, SeverityLow, SeverityMedium, SeverityHigh, SeverityCritical}
}

// AtLeast reports whether s is as grave as t or graver. An unknown severity
// counts as critical: a finding must not vanish because of a typo.
func (s Severity) AtLeast(t Severity) bool { return s.rank() >= t.rank() }

func (s Severity) rank() int {
	for i, v := range Severities() {
		if v == s {
			return i
		}
	}
	return len(Severities())
}

// SideEffect is what a probe does to the sandbox besides looking. Probes with
// one run against a user's own sandbox only with --allow-disruptive.
type SideEffect string

// The side effects.
const (
	EffectForks     SideEffect = "forks"
	EffectAllocates SideEffect = "allocates"
	EffectSignals   SideEffect = "signals"
	EffectWrites    SideEffect = "writes"
	EffectResets    SideEffect = "resets"
)

// Need is a condition without which a probe is skipped.
type Need string

// The needs. Each names an optional ability of package backends, or of the host.
const (
	NeedMeter      Need = "meter"       // backends.Metered
	NeedFuse       Need = "fuse"        // a kernel limit around everything that the probe runs
	NeedChannel    Need = "channel"     // backends.ChannelTapper
	NeedTamper     Need = "tamper"      // backends.Tamperable
	NeedReset      Need = "reset"       // a Reset that really restores
	NeedColocation Need = "co-location" // harness and sandbox on one kernel or one machine
)

// Probe is one experiment. It is a plain value: adding one is a folder with a
// constructor and a line in package catalog.
type Probe struct {
	// Name is the stable id, such as "P-A1-net-egress".
	Name        string
	Class       Class
	Expectation Expectation
	// Description says what is attacked and how, in one or two sentences.
	Description string
	// Why says why a pass proves something.
	Why string
	// Limits says what a pass does not prove.
	Limits string
	// Severity is that of an escape seen by this probe.
	Severity Severity
	// Harm names who is hurt by an escape, in gVisor's terms: "escape",
	// "host leak", "exfiltration", "lateral", "host denial of service", "peer
	// denial of service", "self denial of service", "integrity".
	Harm string
	// Techniques are ids of rows in the field's list of techniques, such as "E01".
	Techniques []string
	// ATTACK are MITRE ATT&CK technique ids, such as "T1611".
	ATTACK []string
	// References are the sources: man pages, CVEs, RFCs, threat-model clauses.
	References  []string
	Needs       []Need
	SideEffects []SideEffect
	// Budget bounds setup, run and teardown together. Zero means DefaultBudget.
	Budget time.Duration

	// Setup prepares. It may be nil.
	Setup func(ctx context.Context, env *Env) error
	// Run carries the experiment out. It returns an error only when the
	// harness itself failed; a sandbox that misbehaves is an Outcome.
	Run func(ctx context.Context, env *Env) (Outcome, error)
	// Teardown is called after Setup succeeded, also when Run failed or
	// panicked. It may be nil.
	Teardown func(ctx context.Context, env *Env) error
}

// DefaultBudget bounds a probe that names none.
const DefaultBudget = 30 * time.Second

// Env is what a probe works with.
type Env struct {
	// Sandbox is booted and ready.
	Sandbox backends.Sandbox
	// Fresh boots another sandbox of the same configuration. The caller shuts
	// it down. It is nil where there can be only one.
	Fresh func(ctx context.Context) (backends.Sandbox, error)
	// Open starts an open target for the control. See OpenOptions.
	Open func(ctx context.Context, o OpenOptions) (Target, error)
	// Policy is the declared boundary.
	Policy policy.Policy
	// Dir is a private scratch directory of this probe, removed after it.
	Dir string
	// Iterations and LatencyBudget are for the latency battery.
	Iterations    int
	LatencyBudget time.Duration
	// RawSamples keeps every latency sample in the report.
	RawSamples bool
	// Budgets are upper bounds for latency percentiles.
	Budgets []Budget
	// Fault, when set, is called by every canary and meter right after it
	// started, with its kind and what stops it. Only tests set it: they stop
	// one witness at a time and require that the verdict becomes inconclusive.
	Fault func(kind string, stop func())
	// Progress reports how far a long probe is. It may be nil.
	Progress func(done, total int)
	// Log gets diagnostics. It is never nil in a run.
	Log *slog.Logger
}

// Budget is an upper bound for one percentile of one latency probe, judged by
// the upper end of the percentile's 95 % confidence interval.
type Budget struct {
	Probe string `json:"probe"`
	// Percentile is 50, 90, 95 or 99.
	Percentile int           `json:"percentile"`
	Max        time.Duration `json:"max_ns"`
}

// Sabotage passes a started witness to Fault, if one is set.
func (e *Env) Sabotage(kind string, stop func()) {
	if e.Fault != nil {
		e.Fault(kind, stop)
	}
}

// OpenOptions ask for an open target: the agent as a plain host process with
// the host identity that the sandboxed agent maps to, pointed only at canaries.
type OpenOptions struct {
	// MemoryBytes and Pids bound the target's kernel fuse. Zero means none.
	// An open target with a fuse that cannot be set is refused.
	MemoryBytes int64
	Pids        int
	// KeepTree asks for an agent that does not kill a tool's tree at its
	// deadline: the control of the time bomb.
	KeepTree bool
}

// Target is an open target. Its abilities are those of backends (Metered,
// HostProcesses, ChannelTapper), found by type assertion.
type Target interface {
	backends.Executor
	Close() error
}
