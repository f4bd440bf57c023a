package probes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
)

// SchemaVersion is the version of the report format.
const SchemaVersion = "1.0"

// TimeLayout is that of every time in a report: UTC with milliseconds.
const TimeLayout = "2006-01-02T15:04:05.000Z"

// HostFacts describe the host of a run.
type HostFacts = hostcheck.Facts

// Report is what a run found, in schema v1.0. The fields up to Notes are the
// seed's; the others are optional additions. docs/report.schema.json describes
// it for other programs.
type Report struct {
	SchemaVersion string `json:"schema_version"`
	GeneratedAt   string `json:"generated_at"`
	// Backend is the backend's name; the mock's is "stub" here.
	Backend string `json:"backend"`
	// FinalSandboxState is read before shutdown.
	FinalSandboxState backends.State          `json:"final_sandbox_state"`
	Probes            []Result                `json:"probes"`
	Latency           map[string]Distribution `json:"latency"`
	Summary           Summary                 `json:"summary"`
	Notes             []string                `json:"notes"`

	Environment   *Environment   `json:"environment,omitempty"`
	SkippedProbes []SkippedProbe `json:"skipped_probes,omitempty"`
	// Baseline is "recorded-in-run" or "persisted" where one was checked.
	Baseline string `json:"baseline,omitempty"`
	// MergedFrom lists the runs that a merged report was put together from. Its
	// environments are there, Environment is nil.
	MergedFrom []MergedRun `json:"merged_from,omitempty"`

	// Unavailable: nothing was tested because this host cannot run the
	// backend. It is for the caller of a run; a file says it in SkippedProbes.
	Unavailable bool `json:"-"`
}

// Result is the entry of one probe that was asked for and not skipped.
type Result struct {
	Name             string         `json:"name"`
	AttackerClass    Class          `json:"attacker_class"`
	Expectation      Expectation    `json:"expectation"`
	ValidatedAgainst string         `json:"validated_against"`
	Description      string         `json:"description"`
	Passed           bool           `json:"passed"`
	Reason           string         `json:"reason"`
	DurationMS       int64          `json:"duration_ms"`
	Errored          bool           `json:"errored"`
	ErrorMessage     string         `json:"error_message,omitempty"`
	Evidence         map[string]any `json:"evidence,omitempty"`

	Verdict   Verdict            `json:"verdict,omitempty"`
	Severity  Severity           `json:"severity,omitempty"`
	Control   *Control           `json:"control,omitempty"`
	Witness   *Witness           `json:"witness,omitempty"`
	Attempts  []ReportedAttempt  `json:"attempts,omitempty"`
	Cases     []Case             `json:"cases,omitempty"`
	NotTested []NotTested        `json:"not_tested,omitempty"`
	Samples   map[string][]int64 `json:"samples_ns,omitempty"`

	// Backend is set in a report that was merged from several backends; empty
	// is the report's own.
	Backend string `json:"backend,omitempty"`
}

// IsMock reports whether a backend, by the name that a report or the catalogue
// has for it, is the mock, which is no boundary.
func IsMock(backend string) bool { return backend == "stub" || backend == "mock" }

// BackendOf returns the backend that a result was reached on.
func (r *Report) BackendOf(p Result) string {
	if p.Backend != "" {
		return p.Backend
	}
	return r.Backend
}

// EnvironmentOf returns the environment that a result was reached in, nil when
// the report does not say.
func (r *Report) EnvironmentOf(p Result) *Environment {
	for _, m := range r.MergedFrom {
		if m.Backend == r.BackendOf(p) && slices.Contains(m.Probes, p.Name) {
			return m.Environment
		}
	}
	return r.Environment
}

// Qualified returns name with its backend in front, as the keys of Latency and
// sentences have it in a report merged from several backends; an empty backend is
// the report's own.
func Qualified(backend, name string) string {
	if backend == "" {
		return name
	}
	return backend + "/" + name
}

// MergedRun is one report that went into a merged one.
type MergedRun struct {
	// SHA256 is the hex digest of the report's file.
	SHA256            string         `json:"sha256"`
	Backend           string         `json:"backend"`
	GeneratedAt       string         `json:"generated_at"`
	FinalSandboxState backends.State `json:"final_sandbox_state"`
	// Probes names the results and skips that were taken from it.
	Probes      []string     `json:"probes"`
	Environment *Environment `json:"environment,omitempty"`
	Baseline    string       `json:"baseline,omitempty"`
}

// ReportedAttempt is an Attempt without what it brought back: a report never
// holds the loot, only its length and hash.
type ReportedAttempt struct {
	Case       string `json:"case"`
	Op         string `json:"op"`
	Target     string `json:"target,omitempty"`
	Result     string `json:"result"`
	Errno      string `json:"errno,omitempty"`
	Detail     string `json:"detail,omitempty"`
	DataLength int    `json:"data_length,omitempty"`
	DataSHA256 string `json:"data_sha256,omitempty"`
}

// ReportAttempts strips attempts of their data.
func ReportAttempts(list []Attempt) []ReportedAttempt {
	out := make([]ReportedAttempt, len(list))
	for i, a := range list {
		out[i] = ReportedAttempt{Case: a.Case, Op: a.Op, Target: a.Target, Result: string(a.Result), Errno: a.Errno, Detail: a.Detail}
		if len(a.Data) > 0 {
			sum := sha256.Sum256(a.Data)
			out[i].DataLength, out[i].DataSHA256 = len(a.Data), hex.EncodeToString(sum[:])
		}
	}
	return out
}

// Summary counts the probes that were asked for; the four kinds add up to Total.
type Summary struct {
	Total   int `json:"total"`
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Errored int `json:"errored"`
	Skipped int `json:"skipped"`
}

// SkippedProbe is a probe that was asked for and did not run.
type SkippedProbe struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// NeverHosts marks a probe that the backend can never host. Only such a
	// skip does not count against a run on a real backend.
	NeverHosts bool `json:"never_hosts,omitempty"`
	// Backend is set as that of a Result is.
	Backend string `json:"backend,omitempty"`
}

// Environment is what the verdicts were reached in.
type Environment struct {
	Host HostFacts `json:"host"`
	// Sandbox is what the booted sandbox measured about itself.
	Sandbox *backends.Provenance `json:"sandbox,omitempty"`
	// Colocated: harness and sandbox were shown to share this machine's kernel
	// or to be host and guest of it. ColocatedBy says how, or why not.
	Colocated   bool   `json:"co_located"`
	ColocatedBy string `json:"co_located_by,omitempty"`
	// Policy is the name of the declared boundary, PolicySHA256 the digest of
	// what it declares.
	Policy       string `json:"policy,omitempty"`
	PolicySHA256 string `json:"policy_sha256,omitempty"`
	// Leaks are the deliberate weaknesses that were built in.
	Leaks []string `json:"leaks,omitempty"`
	// FailSeverity is the lowest severity at which a weakness failed its probe.
	FailSeverity Severity `json:"fail_severity,omitempty"`
	// Harness is the version of this program. HarnessSHA256 is the hex digest of
	// its executable, in runs whose reports may have to be joined with others.
	Harness       string `json:"harness,omitempty"`
	HarnessSHA256 string `json:"harness_sha256,omitempty"`
	// Shard is set when this run was one part of a selection.
	Shard *Shard `json:"shard,omitempty"`
}

// The provenances that every note counts, also when none has them.
const (
	MockOnly      = "mock-only"
	ValidatedCHV  = "validated-chv"
	ValidatedVF   = "validated-vf"
	ValidatedBoth = "validated-chv-and-vf"
)

// ValidatedBy returns the provenance for a backend.
func ValidatedBy(backend string) string { return "validated-" + backend }

// Clean reports whether the run found nothing: no probe failed or errored and
// the sandbox did not end failed. A report of skips only is clean.
func (r *Report) Clean() bool {
	return r.Summary.Failed == 0 && r.Summary.Errored == 0 && r.FinalSandboxState != backends.StateFailed
}

// Summarise counts the results and skips.
func Summarise(results []Result, skipped []SkippedProbe) Summary {
	s := Summary{Total: len(results) + len(skipped), Skipped: len(skipped)}
	for _, r := range results {
		switch {
		case r.Errored:
			s.Errored++
		case r.Passed:
			s.Passed++
		default:
			s.Failed++
		}
	}
	return s
}

// SummaryLines are the two lines that end every run.
func (r *Report) SummaryLines() [2]string {
	s := r.Summary
	return [2]string{
		fmt.Sprintf("bsm-redteam: total=%d passed=%d failed=%d errored=%d skipped=%d", s.Total, s.Passed, s.Failed, s.Errored, s.Skipped),
		"bsm-redteam: provenance " + provenance(r.Probes, false),
	}
}

// ProvenanceNote is the last note of every report. It counts the probes that
// ran.
func ProvenanceNote(results []Result) string {
	return fmt.Sprintf("validation-provenance: %s (total=%d)", provenance(results, true), len(results))
}

func provenance(results []Result, both bool) string {
	count := map[string]int{}
	for _, r := range results {
		count[r.ValidatedAgainst]++
	}
	names := []string{MockOnly, ValidatedCHV, ValidatedVF}
	var others []string
	for name := range count {
		if name != ValidatedBoth && !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	names = append(names, others...)
	if both || count[ValidatedBoth] > 0 {
		names = append(names, ValidatedBoth)
	}
	parts := make([]string, len(names))
	for i, name := range names {
		parts[i] = fmt.Sprintf("%s=%d", name, count[name])
	}
	return strings.Join(parts, " ")
}
