// Package runner carries probes out against a sandbox and adds their answers up
// to a report.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/hostcheck"
	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
	"github.com/brainst0rm/sandbox-redteam/internal/policy"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Runner runs Probes, in order, against a sandbox. Either Sandbox or New has to
// be set. The zero value of everything else is a sensible default. A Runner
// keeps no state between runs.
type Runner struct {
	// Sandbox is the instance to attack. nil takes one from New.
	Sandbox backends.Sandbox
	// New makes another sandbox of the same configuration, not booted. Without
	// it a fresh sandbox is Sandbox shut down and booted again, and probes
	// have no Env.Fresh.
	New func() (backends.Sandbox, error)
	// Backend names the backend in a report on a sandbox that New could not
	// even make.
	Backend string
	// Probes are what was asked for, in the order in which they run.
	Probes []probes.Probe

	// NoAutoBoot leaves the first boot to the caller: Sandbox is ready.
	NoAutoBoot bool
	// NoAutoShutdown leaves the last sandbox running. With New set, that may
	// be another one than Sandbox; OnSandbox tells.
	NoAutoShutdown bool
	// OnSandbox is called with every sandbox that the run goes on with.
	OnSandbox func(backends.Sandbox)

	// Exclusions are the probes that this backend can never host.
	Exclusions []backends.Exclusion
	// Foreign marks a sandbox that belongs to the user: probes with side effects
	// need AllowDisruptive.
	Foreign         bool
	AllowDisruptive bool

	// Open starts the open target of the controls. nil asks the sandbox for
	// its own (backends.Controlled) and otherwise runs Agent on this host.
	Open  func(ctx context.Context, sb backends.Sandbox, o probes.OpenOptions) (probes.Target, error)
	Agent string
	// Fuse reports whether a kernel limit can be put around a probe. nil asks
	// this host.
	Fuse func(ctx context.Context) error

	Policy policy.Policy
	Leaks  []string // for the report
	// Shard is set when Probes are one part of a selection, for the report.
	Shard *probes.Shard
	// FailSeverity is the lowest severity at which a weakness fails its probe;
	// "" is medium.
	FailSeverity  probes.Severity
	Iterations    int
	LatencyBudget time.Duration
	RawSamples    bool
	Budgets       []probes.Budget
	// Budget replaces the budget of every probe that names none.
	Budget time.Duration
	Fault  func(kind string, stop func())

	// Version is that of the harness. Digest returns the hex SHA-256 of its
	// executable; it is asked where the backend is available, and of every shard.
	Version string
	Digest  func() string
	Ledger  *ledger.Ledger
	Log     *slog.Logger
	// Watch is told of every step. It is called from one goroutine at a time.
	Watch func(Event)
	// Checkpoint is called before the boot and after every probe with the report
	// so far, in which what is still to come counts as skipped: whoever keeps it
	// has a partial report even if this process is killed.
	Checkpoint func(probes.Report)
	// Now is the clock of generated_at. nil is the host's.
	Now func() time.Time
}

// Event is one step of a run.
type Event struct {
	Probe string
	Index int // from 0
	Of    int
	// Done and Total are the progress within a long probe.
	Done, Total int
	// Result is set when the probe ended, Skipped when it was not run.
	Result  *probes.Result
	Skipped *probes.SkippedProbe
}

// grace is what a probe gets after its budget to notice, and a teardown, reset or
// shutdown at most takes.
const (
	grace        = 5 * time.Second
	teardownTime = 15 * time.Second
	cleanupTime  = 30 * time.Second
)

// Run carries the probes out. The report is valid whatever the error: every
// probe that was asked for is accounted for in it. An error means that the
// runner was set up wrongly, or is the context's when it ended the run early.
func (r *Runner) Run(ctx context.Context) (probes.Report, error) {
	s := &session{Runner: r, log: r.Log, latency: map[string]probes.Distribution{}, notes: []string{}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if r.Sandbox == nil && r.New == nil {
		return probes.Report{}, errors.New("runner: neither Sandbox nor New is set")
	}
	if r.NoAutoBoot && r.Sandbox == nil {
		return probes.Report{}, errors.New("runner: NoAutoBoot needs a Sandbox")
	}
	s.checkpoint(0)
	if err := s.start(ctx); err != nil {
		s.notBooted(err)
	} else {
		for i, p := range r.Probes {
			s.probe(ctx, i, p)
			s.checkpoint(i + 1)
		}
		s.ready(ctx)
	}
	final := s.state()
	s.end()
	s.removeDir()
	return s.report(final), ctx.Err()
}

// session is the state of one Run.
type session struct {
	*Runner
	log *slog.Logger
	mu  sync.Mutex // of Watch: a long probe reports from its own goroutine
	sb  backends.Sandbox
	// extra are the sandboxes that the current probe booted through Env.Fresh.
	extra fleet
	// dir holds the directories of the probes; empty until there is one.
	dir      string
	dirEntry *ledger.Entry

	coloc   colocation
	prov    *backends.Provenance
	ran     bool // a probe has used the present sandbox
	missing bool // the backend is not available
	results []probes.Result
	skipped []probes.SkippedProbe
	latency map[string]probes.Distribution
	notes   []string
}

func (s *session) state() backends.State {
	if s.sb == nil {
		return backends.StateNotBooted
	}
	return s.sb.State()
}

// checkpoint reports what was found up to the given probe as if the run ended
// there.
func (s *session) checkpoint(next int) {
	if s.Checkpoint == nil {
		return
	}
	r := s.report(s.state())
	r.SkippedProbes = slices.Clone(r.SkippedProbes)
	for _, p := range s.Probes[next:] {
		r.SkippedProbes = append(r.SkippedProbes, probes.SkippedProbe{Name: p.Name, Reason: interrupted})
	}
	r.Summary = probes.Summarise(r.Probes, r.SkippedProbes)
	s.Checkpoint(r)
}

// interrupted is why a probe was skipped that a run did not get to.
const interrupted = "interrupted before it ran"

func (s *session) note(format string, args ...any) {
	n := printable(fmt.Sprintf(format, args...))
	s.notes = append(s.notes, n)
	s.log.Info(n)
}

func (s *session) skip(i int, p probes.Probe, reason string, never bool) {
	sk := probes.SkippedProbe{Name: p.Name, Reason: printable(reason), NeverHosts: never}
	s.skipped = append(s.skipped, sk)
	s.watch(Event{Probe: p.Name, Index: i, Of: len(s.Probes), Skipped: &sk})
}

func (s *session) add(i int, res probes.Result) {
	s.results = append(s.results, res)
	s.watch(Event{Probe: res.Name, Index: i, Of: len(s.Probes), Result: &res})
}

func (s *session) watch(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Watch != nil {
		s.Watch(e)
	}
}

// notBooted accounts for every probe when the first boot failed: an unavailable
// backend skips them all, anything else is an error of each.
func (s *session) notBooted(err error) {
	if errors.Is(err, backends.ErrNotAvailable) {
		s.missing = true
		s.note("sandbox not available on this host: %s; all probes skipped. Nothing was tested: run `bsm-redteam doctor` for what this host lacks.", err)
		for i, p := range s.Probes {
			s.skip(i, p, "sandbox not available on this host", false)
		}
		return
	}
	s.note("boot failed: %s", err)
	for i, p := range s.Probes {
		if errors.Is(err, context.Canceled) {
			s.skip(i, p, interrupted, false)
			continue
		}
		s.add(i, errored(p, fmt.Errorf("not run, the sandbox did not boot: %w", err)))
	}
}

func (s *session) report(final backends.State) probes.Report {
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	backend := s.backend()
	if backend == mockName {
		backend = "stub"
	}
	env := probes.Environment{Host: hostcheck.Collect(), Sandbox: s.prov, Colocated: s.coloc.ok, ColocatedBy: s.coloc.by,
		Policy: s.Policy.Name, PolicySHA256: s.Policy.Digest(), Leaks: s.Leaks,
		FailSeverity: s.threshold(), Harness: s.Version, Shard: s.Shard}
	if s.Digest != nil && (!s.missing || s.Shard != nil) {
		env.HarnessSHA256 = s.Digest()
	}
	rep := probes.Report{
		SchemaVersion: probes.SchemaVersion, GeneratedAt: now().UTC().Format(probes.TimeLayout),
		Backend: backend, FinalSandboxState: final,
		Probes: append([]probes.Result{}, s.results...), Latency: maps.Clone(s.latency),
		Summary: probes.Summarise(s.results, s.skipped), SkippedProbes: s.skipped,
		Notes:       append(slices.Clone(s.notes), probes.ProvenanceNote(s.results)),
		Environment: &env, Unavailable: s.missing,
	}
	if s.prov != nil {
		rep.Baseline = s.prov.Baseline
	}
	return rep
}

func (s *session) backend() string {
	if s.sb != nil {
		return s.sb.Backend()
	}
	return s.Backend
}
