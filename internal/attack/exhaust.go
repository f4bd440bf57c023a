package attack

import "time"

// ResourceExhaust is the tool of P-A4. It takes one resource until it is killed,
// refused, or has as much as the host allowed.
const ResourceExhaust = "resource.exhaust"

// The sub-cases of ResourceExhaust.
const (
	ExhaustMemory = "memory"
	ExhaustPids   = "pids"
	ExhaustFDs    = "fds"
)

// ExhaustParams are the parameters of ResourceExhaust. The tool must stay
// within StopBytes and StopCount whatever else happens: they, and the kernel
// fuse around it, are what keeps the host safe.
type ExhaustParams struct {
	Nonce string `json:"nonce"`
	// Case is one of the Exhaust constants.
	Case string `json:"case"`
	// AskBytes is the size of the mapping that is asked for.
	AskBytes int64 `json:"ask_bytes,omitempty"`
	// StopBytes is how much of it is touched at most.
	StopBytes int64 `json:"stop_bytes,omitempty"`
	// StopCount is how many processes or descriptors are made at most.
	StopCount int `json:"stop_count,omitempty"`
	// Hold is how long everything that was got is kept, so that the host's
	// meter sees it. It also bounds the pauses between steps.
	Hold time.Duration `json:"hold_ns,omitempty"`
	// Life ends every process of the tool, whatever happens to the others.
	Life time.Duration `json:"life_ns,omitempty"`
	// Worker is set by the tool itself for the child that does the work.
	Worker bool `json:"worker,omitempty"`
}

// What the report's facts are called.
const (
	// FactReached is how much was taken: bytes, processes or descriptors.
	FactReached = "reached"
	// FactEnd is one of the End constants.
	FactEnd = "end"
)

// How a resource.exhaust ended, by its own account.
const (
	EndKilled  = "killed"  // the worker was killed
	EndRefused = "refused" // the kernel refused more
	EndStopped = "stopped" // the tool had all it may take
	EndBroken  = "broken"  // the worker failed in another way
)
