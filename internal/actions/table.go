// Package actions is the interface to GitHub's runner: the inputs and outputs of
// action.yml, the files that the runner reads after a step, annotations, and a
// log in which nothing is a command.
//
// What the runner believes is written here and nowhere else, and never holds a
// byte from a sandbox: outputs are enumerations, integers and paths of our own.
package actions

import "strings"

// Input is one input of the action. GitHub does not tell an empty input from an
// unset one and enforces no `required`, so empty is the default and the program
// decides what it means: a default in action.yml would override the user's files.
type Input struct {
	Name string
	// About says in Markdown what it is for, Default what empty means.
	About, Default string
	// Expression is the default in action.yml: only of what a program cannot
	// know by itself.
	Expression string
	// Install and Prepare are the variables in which scripts/install.sh and
	// scripts/prepare-host.sh read it; empty where they do not.
	Install, Prepare string
	// Run is set where `bsm-redteam action` reads it, as INPUT_ and its name.
	Run bool
	// List is set where it holds several values, by comma or line.
	List bool
}

// Variable is the environment variable in which the program reads the input.
func (i Input) Variable() string { return "INPUT_" + upper(i.Name) }

func upper(name string) string { return strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// The names of the inputs that the program reads.
const (
	InBackend       = "backend"
	InProbes        = "probes"
	InConfig        = "config"
	InBaseline      = "baseline"
	InFailOn        = "fail-on"
	InFailSeverity  = "fail-severity"
	InOnUnavailable = "on-unavailable"
	InAllowEmpty    = "allow-empty"
	InReportDir     = "report-dir"
	InIterations    = "iterations"
	InLatBudget     = "lat-budget"
	InBudgets       = "budgets"
	InRawSamples    = "raw-samples"
	InTimeout       = "timeout"
	InShard         = "shard"
	InVerbose       = "verbose"
)

// Inputs lists the inputs in the order in which people are shown them. action.yml
// and the README are generated from it.
func Inputs() []Input {
	return []Input{
		{Name: InBackend, About: "what to attack: `qemu`, `bwrap` or `mock`; `bsm-redteam doctor` says which of them a host can run", Default: "none, it must be set", Prepare: "BSM_BACKEND", Run: true},
		{Name: InProbes, About: "batteries (`adversarial`, `lat`, `all`), classes (`A1`) and names of probes, by comma or line", Default: "`all`", Run: true, List: true},
		{Name: InConfig, About: "YAML file with the declared boundary, also the leaks to build in for a self-test", Default: "the backend's own policy", Run: true},
		{Name: InBaseline, About: "`report.json` of an earlier run of the same backend; what is worse than it is a regression", Default: "none, nothing is compared", Run: true},
		{Name: InFailOn, About: "what fails the job: `failure` (includes regressions), `regression` (needs `baseline`) or `never`; that nothing passed, or that a probe was not proved on a real backend, fails it under all three", Default: "`failure`", Run: true},
		{Name: InFailSeverity, About: "lowest severity at which a weakness fails its probe: `info`, `low`, `medium`, `high` or `critical`", Default: "`medium`", Run: true},
		{Name: InOnUnavailable, About: "what a backend that cannot run here leads to: `fail` or `skip`", Default: "`fail`", Run: true},
		{Name: InAllowEmpty, About: "`true` accepts a run in which nothing was tested, after an allowed skip", Default: "`false`", Run: true},
		{Name: InReportDir, About: "directory for the reports", Default: "a new one below `runner.temp`", Run: true},
		{Name: InIterations, About: "samples of each latency probe", Default: "`1000`", Run: true},
		{Name: InLatBudget, About: "time cap of each latency probe, such as `5m`; it then reports fewer samples", Default: "none", Run: true},
		{Name: InBudgets, About: "upper bounds of latencies, such as `P-LAT-reset.p50=500ms`, by comma or line", Default: "that of the probes", Run: true, List: true},
		{Name: InRawSamples, About: "`true` keeps every latency sample in the report, for `bsm-redteam compare`", Default: "`false`", Run: true},
		{Name: InTimeout, About: "time for the whole run, such as `20m`; when it is over, a partial report is written and the job fails", Default: "`1h`", Run: true},
		{Name: InShard, About: "part of the selected probes to run, such as `1/4`, for a matrix; `bsm-redteam merge` joins the reports", Default: "all of them", Run: true},
		{Name: InVerbose, About: "`true` logs what the harness does", Default: "`false`", Run: true},
		{Name: "prepare-host", About: "`auto` gives the host what the backend lacks (its package, access to KVM, user namespaces, a cgroup for kernel limits) where the job is root or has `sudo` without a password, `never` leaves the host alone", Default: "`auto`", Prepare: "BSM_PREPARE_HOST"},
		{Name: "install", About: "where the program comes from: `release`, `source` (built from the action's checkout, needs Go) or `none` (see `bin`)", Default: "`release`", Install: "BSM_INSTALL"},
		{Name: "bin", About: "path of a `bsm-redteam` that is there already, for `install: none`", Default: "none", Install: "BSM_BIN"},
		{Name: "attestation", About: "check of the build provenance of a release on top of its digest: `off`, `auto` (where `gh` is there and GitHub answers) or `required`", Default: "`auto`", Install: "BSM_ATTESTATION"},
		{Name: "github-token", About: "token for that check, and for nothing else", Default: "the job's", Expression: "${{ github.token }}", Install: "GH_TOKEN"},
	}
}

// The names of the outputs.
const (
	OutVerdict     = "verdict"
	OutPassed      = "passed"
	OutFailed      = "failed"
	OutErrored     = "errored"
	OutSkipped     = "skipped"
	OutMockOnly    = "mock-only"
	OutRegressions = "regressions"
	OutReportJSON  = "report-json"
	OutReportJUnit = "report-junit"
	OutReportSARIF = "report-sarif"
	OutReportDir   = "report-dir"
	OutVersion     = "version"
)

// Output is one output of the action.
type Output struct {
	Name, About string
	// Otherwise is its value where the program was not even started, because it
	// could not be installed; empty is none.
	Otherwise string
}

// OutputTable lists the outputs in the order in which people are shown them.
func OutputTable() []Output {
	return []Output{
		{Name: OutVerdict, About: "`pass`, `fail`, `skip` (nothing was tested, and that was allowed), `unavailable`, `timeout`, `cancelled`, or `error`: the inputs or the host were wrong and there may be no report", Otherwise: string(Errored)},
		{Name: OutPassed, About: "number of probes that passed"},
		{Name: OutFailed, About: "number of probes that failed"},
		{Name: OutErrored, About: "number of probes that came to no answer"},
		{Name: OutSkipped, About: "number of probes that were not run"},
		{Name: OutMockOnly, About: "number of probes that ran and were proved on no real sandbox"},
		{Name: OutRegressions, About: "number of regressions; empty when nothing was compared"},
		{Name: OutReportJSON, About: "path of the report"},
		{Name: OutReportJUnit, About: "path of the report as JUnit XML"},
		{Name: OutReportSARIF, About: "path of the findings as SARIF"},
		{Name: OutReportDir, About: "directory of the three"},
		{Name: OutVersion, About: "version of the program"},
	}
}
