// Package backends defines what a sandbox is to this project: one booted
// instance behind the [Sandbox] interface, a small state machine, typed errors
// with stable codes, and a handful of optional abilities that a probe finds by
// type assertion.
//
// The packages below this one (mock, qemu, bwrap, ...) make sandboxes; package
// catalog lists them; package backendtest is the conformance suite that every
// one of them runs. A backend never imports a probe and a probe never imports a
// backend: this package is all that they share.
package backends

import (
	"context"
	"time"
)

// Sandbox is one instance of a boundary under test.
//
// A Sandbox is safe for concurrent use. Boot and Shutdown are idempotent. All
// methods honour their context: when it ends, the call returns soon after and
// whatever it had begun to create is gone.
type Sandbox interface {
	// Backend returns the stable name of the kind of sandbox, such as "qemu".
	Backend() string

	// Boot starts the instance and returns once its agent has announced
	// itself. It returns ErrNotAvailable when preflight finds, before anything
	// was spawned, that this host cannot run the backend, and ErrBootFailed
	// for every later failure. Booting a ready sandbox does nothing.
	Boot(ctx context.Context) error

	// Execute runs one tool inside and waits for its result. A non-zero exit
	// code is a result, not an error. It returns ErrToolTimeout only after the
	// tool's whole process tree is known to be dead, or after the sandbox
	// itself was killed because that could not be confirmed.
	Execute(ctx context.Context, inv Invocation) (Execution, error)

	// Reset returns the sandbox to its golden state and verifies that from
	// three sources. Any source that disagrees leaves the sandbox failed and
	// returns ErrResetDivergence (a *DivergenceError); a marker that survived
	// returns ErrResetFailed. The returned state is valid in both cases.
	Reset(ctx context.Context) (ResetState, error)

	// Shutdown ends the instance and removes everything that it created on
	// the host. A shut down sandbox can be booted again.
	Shutdown(ctx context.Context) error

	// State reports where the instance is in its life.
	State() State
}

// Executor is the part of a Sandbox that a control needs: something that runs
// tools. The open target (the agent on this host, without a boundary) is an
// Executor and nothing more.
type Executor interface {
	Execute(ctx context.Context, inv Invocation) (Execution, error)
}

// State is where a sandbox is in its life. The values appear in reports.
type State string

// The states of a sandbox.
const (
	StateNotBooted State = "not_booted"
	StateBooting   State = "booting"
	StateReady     State = "ready"
	StateResetting State = "resetting"
	StateFailed    State = "failed"
)

// DefaultDeadline bounds an Invocation that names no deadline of its own.
const DefaultDeadline = 10 * time.Second

// Invocation asks for one run of a tool inside the sandbox.
type Invocation struct {
	// ID is the command_id on the wire. It must be unique among the calls in
	// flight; an empty one is replaced by a fresh random id.
	ID string
	// Tool names the tool, such as "noop" or "net.probe".
	Tool string
	// Params is marshalled to a JSON object; nil means {}.
	Params any
	// Deadline is how long the tool may run, on the host's clock. Zero means
	// DefaultDeadline.
	Deadline time.Duration
}

// Execution is the result of a tool that ended by itself.
type Execution struct {
	ID       string
	ExitCode int
	Stdout   Text
	Stderr   Text
	// EvidenceHash is the SHA-256 over the framed stdout and stderr, in
	// lower-case hex, recomputed by the host. See wire.EvidenceHash.
	EvidenceHash string
	// Elapsed is the host's monotonic time from dispatch to result.
	Elapsed time.Duration
}

// Source names one of the three independent sources of a reset verification.
type Source string

// The three sources, by the field that carries each in VerificationDetails.
const (
	SourceFSHash      Source = "fs_hash"
	SourceOpenFDCount Source = "open_fd_count"
	SourceVMMState    Source = "vmm_api_state"
)

// Sources lists all three in report order.
func Sources() []Source { return []Source{SourceFSHash, SourceOpenFDCount, SourceVMMState} }

// DivergenceAction says what a verification led to.
type DivergenceAction string

// The two actions of protocol v1. There is no automatic recovery.
const (
	ActionNone DivergenceAction = "none"
	ActionHalt DivergenceAction = "halt"
)

// ResetState is the outcome of a reset, with exactly the keys of protocol v1.
type ResetState struct {
	ResetAt             string              `json:"reset_at"`
	GoldenHash          string              `json:"golden_hash"`
	VerificationPassed  bool                `json:"verification_passed"`
	VerificationDetails VerificationDetails `json:"verification_details"`
}

// VerificationDetails holds the three sources beside their baselines. The
// hashes are "sha256:" and 64 hex digits; fd counts are never negative; the VMM
// state is one of running, paused, stopped, error.
type VerificationDetails struct {
	FSHash              string           `json:"fs_hash"`
	FSHashBaseline      string           `json:"fs_hash_baseline"`
	FSHashMatch         bool             `json:"fs_hash_match"`
	OpenFDCount         int              `json:"open_fd_count"`
	OpenFDCountBaseline int              `json:"open_fd_count_baseline"`
	VMMAPIState         string           `json:"vmm_api_state"`
	ExpectedVMMAPIState string           `json:"expected_vmm_api_state"`
	DivergenceAction    DivergenceAction `json:"divergence_action"`
}

// Limits are the resource bounds that a sandbox is declared to keep. Zero means
// that no bound is declared.
type Limits struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty" yaml:"memory_bytes,omitempty"`
	Pids        int     `json:"pids,omitempty" yaml:"pids,omitempty"`
	CPUs        float64 `json:"cpus,omitempty" yaml:"cpus,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty" yaml:"disk_bytes,omitempty"`
	OpenFiles   int     `json:"open_files,omitempty" yaml:"open_files,omitempty"`
}
