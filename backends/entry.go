package backends

import (
	"context"
	"errors"
	"log/slog"

	"github.com/brainst0rm/sandbox-redteam/internal/ledger"
)

// Options is what every backend is made from.
type Options struct {
	// Agent is the path of the bsm-agent that runs inside. Its digest is
	// taken at boot and compared with the one in the agent's hello.
	Agent string
	// Image is the directory of a built guest image (backends with a kernel).
	Image string
	// WorkDir is where run directories are made; empty means os.TempDir().
	WorkDir string
	// Baseline is the path of a persisted baseline; empty records one per run.
	Baseline string
	// RequireBaseline refuses to run without a persisted baseline.
	RequireBaseline bool
	// Limits are declared by the policy and enforced by the backend.
	Limits Limits
	// Leaks are the deliberate weaknesses to build in, by name.
	Leaks []string
	// Ledger records every resource before it is created. nil records none.
	Ledger *ledger.Ledger
	// Log gets the backend's own diagnostics. nil discards them.
	Log *slog.Logger
}

// Diagnosis is the answer of a backend's doctor.
type Diagnosis struct {
	// Available says whether Boot would get past preflight.
	Available bool `json:"available"`
	// Findings are what was checked, in order, each with its fix.
	Findings []Finding `json:"findings"`
}

// Finding is one line of a diagnosis.
type Finding struct {
	OK   bool   `json:"ok"`
	What string `json:"what"`
	// Fix is the exact command or setting that helps; empty when OK.
	Fix string `json:"fix,omitempty"`
	// Optional findings do not make the backend unavailable.
	Optional bool `json:"optional,omitempty"`
}

// Leak is a deliberate weakness of a backend.
type Leak struct {
	// Name is unique within the backend, such as "user-net".
	Name string `json:"name"`
	// Class is the attacker class whose probes have to catch it.
	Class string `json:"class"`
	// About says in a sentence what the leak opens.
	About string `json:"about"`
	// Expect names the probes that must answer escaped or weak.
	Expect []string `json:"expect"`
	// Prove shows that the leak of a booted sandbox is real, by a check that
	// shares no code with the probes. nil error means that it is.
	Prove func(ctx context.Context, sb Sandbox) error `json:"-"`
	// NeedsOwnHost marks a leak that is built on a real host only with
	// --i-own-this-host.
	NeedsOwnHost bool `json:"needs_own_host,omitempty"`
}

// ErrLeakNotBuilt is in the chain of a boot's error where this host's kernel does
// not let the weakness exist: there is nothing that a probe could miss.
var ErrLeakNotBuilt = errors.New("leak not built")

// Exclusion names a probe that a backend can never host, with the reason.
type Exclusion struct {
	Probe  string `json:"probe"`
	Reason string `json:"reason"`
}

// Entry describes one backend in the catalogue.
type Entry struct {
	Name  string
	Title string
	// Real is false for the mock: it is no boundary.
	Real bool
	// InProcess is set where the agent runs in the harness's own process, so that
	// the two take turns.
	InProcess bool
	// NeedsImage is set for backends with a guest kernel of their own.
	NeedsImage bool
	// Doctor says whether this host can run the backend, without spawning
	// anything that outlives it.
	Doctor func(ctx context.Context, o Options) Diagnosis
	// New makes an instance that is not booted yet. It validates o, the leak
	// names included, and touches nothing on the host.
	New func(o Options) (Sandbox, error)
	// Leaks are the weaknesses that New accepts.
	Leaks []Leak
	// NeverHosts are the probes that can never run here.
	NeverHosts []Exclusion
	// DefaultLimits apply where the policy declares none.
	DefaultLimits Limits
}
