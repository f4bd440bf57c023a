package backends

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"time"
)

// The interfaces below are optional. A probe asserts for the one that it needs
// and says in its metadata that it does.

// HostAddress is one address of the host as the sandbox would try to reach it,
// beside the address on which the host can bind a canary for it. They differ
// where a gateway translates: QEMU's user network maps 10.0.2.2 to the host's
// 127.0.0.1.
type HostAddress struct {
	Guest netip.Addr `json:"guest"`
	Host  netip.Addr `json:"host"`
	// Via names the route for the report: "loopback", "user-mode gateway".
	Via string `json:"via"`
}

// HostAddresser names the host addresses that something inside could try. They
// are the only addresses that probes hand to an agent.
type HostAddresser interface {
	HostAddresses() []HostAddress
}

// Usage is what the host measures of a sandbox, from outside.
type Usage struct {
	// MemoryBytes is the memory that the sandbox occupies on the host and
	// that its limit is about: guest RAM of a VM, the cgroup or the processes
	// of a container.
	MemoryBytes int64 `json:"memory_bytes"`
	// PeakBytes is the most that MemoryBytes ever was, by the kernel's own
	// high-water mark; 0 where the kernel keeps none.
	PeakBytes int64 `json:"peak_bytes,omitempty"`
	// Tasks counts host tasks (threads) that belong to the sandbox.
	Tasks int `json:"tasks"`
	// CPUTime is the processor time that they have used so far.
	CPUTime time.Duration `json:"cpu_time_ns"`
	// Kills counts the kernel's memory kills within the sandbox's cgroup, -1
	// where the host cannot see them (inside a VM).
	Kills int64 `json:"kills"`
	// Refusals counts the forks that the kernel refused at the task limit.
	Refusals int64 `json:"refusals,omitempty"`
	// Method says how MemoryBytes was measured: "smaps of guest RAM",
	// "cgroup v1 memory.usage_in_bytes", "sum of process RSS".
	Method string `json:"method"`
}

// Metered is a sandbox whose consumption the host can measure.
type Metered interface {
	Usage(ctx context.Context) (Usage, error)
}

// HostProcesses is a sandbox some of whose processes are host processes.
type HostProcesses interface {
	// HostPIDs lists them, in the host's pid numbers. For a VM that is the
	// VMM; its guest's processes are not host processes.
	HostPIDs(ctx context.Context) ([]int, error)
	// InsideIsHost reports whether a process started inside is itself a host
	// process, as in a container, or lives in a guest kernel.
	InsideIsHost() bool
}

// Credential is a host identity.
type Credential struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// HostIdentity is a sandbox whose agent, were it to get out, would act with a
// known host identity: the uid that the namespace maps to, or the VMM's. The
// control runs with it, so that file permissions never look like a boundary.
type HostIdentity interface {
	HostCredential() Credential
}

// Machine is a sandbox with a guest kernel of its own, booted by us. In it the
// agent may do what on a shared kernel would harm the host.
type Machine interface {
	IsMachine() bool
}

// ChannelTapper gives raw access to the message channel, below the decoder.
type ChannelTapper interface {
	// Tap passes every byte read from the guest to fn, before it is decoded,
	// until stop is called. fn must not block and must not keep b.
	Tap(fn func(b []byte)) (stop func())
	// Inject writes raw bytes to the guest, as they are.
	Inject(ctx context.Context, b []byte) error
	// Resync opens a new session on the channel after one was poisoned.
	Resync(ctx context.Context) error
}

// Tamper is one change to what a reset rests on, made behind the sandbox's
// back.
type Tamper struct {
	// Name is the sub-case, such as "disk-byte" or "lying-vmm".
	Name string
	// About says in a sentence what is changed.
	About string
	// Source is the source of the verification that has to notice.
	Source Source
	// NotCovered, when not empty, says why no verification could notice this
	// variant. It is then reported as not tested, never as a pass.
	NotCovered string
	// Apply makes the change and returns what undoes it.
	Apply func(ctx context.Context) (undo func() error, err error)
}

// Tamperable exposes the substrate of a sandbox to P-A6.
type Tamperable interface {
	Tampers() []Tamper
	// ResetIgnoring resets with the comparison of the named sources switched
	// off. It is the control: a tamper that goes unseen this way, and is seen
	// otherwise, was seen by the comparison.
	ResetIgnoring(ctx context.Context, off ...Source) (ResetState, error)
}

// Rearmer is a Tamperable sandbox that can take up its golden state again after
// a divergence has halted it, without a whole boot. Only P-A6 calls it, on
// sandboxes of its own, once it has undone its change: for everybody else there
// is no recovery from a divergence.
type Rearmer interface {
	// Rearm makes a failed sandbox ready. It verifies nothing: a Reset has to
	// follow.
	Rearm(ctx context.Context) error
}

// Controlled is a sandbox that brings its own open target, because the host
// cannot run its agent: the mock, or a foreign architecture.
type Controlled interface {
	// OpenTarget returns an executor with the same tools and no boundary.
	OpenTarget(ctx context.Context) (Executor, func() error, error)
}

// Provenance is what a booted sandbox measured about itself. Every digest is
// of the file that was really used, taken in this run.
type Provenance struct {
	Accelerator string            `json:"accelerator,omitempty"` // kvm, tcg, none
	VMMPath     string            `json:"-"`
	VMMVersion  string            `json:"vmm_version,omitempty"`
	VMMPID      int               `json:"vmm_pid,omitempty"`
	Digests     map[string]string `json:"digests,omitempty"` // kernel, initramfs, rootfs, agent, snapshot-ram, ...
	// Baseline is "recorded-in-run", "persisted" or "" where none applies.
	Baseline string `json:"baseline,omitempty"`
	// Hardening lists what is in force around the VMM or the runtime.
	Hardening []string `json:"hardening,omitempty"`
}

// MadeByRun begins the roles of files that a run makes itself, such as its golden
// snapshot: their digests differ from run to run.
const MadeByRun = "snapshot-"

// Inputs are the digests of what the sandbox was made from, which two runs of the
// same thing have in common.
func (p Provenance) Inputs() map[string]string {
	of := maps.Clone(p.Digests)
	maps.DeleteFunc(of, func(role, _ string) bool { return strings.HasPrefix(role, MadeByRun) })
	return of
}

// Provenancer is a sandbox that can say what it really runs. One without it,
// or the mock, is never more than mock-only in a report.
type Provenancer interface {
	Provenance() Provenance
}

// FrameTimer is a sandbox whose whole-frame deadline can be set for the next
// session, so that a probe of slow frames need not wait for the default.
type FrameTimer interface {
	SetFrameTimeout(d time.Duration)
}

// Renderer is a sandbox, or a product around one, that renders its guest's
// output itself. P-A7 judges its rendering beside ours.
type Renderer interface {
	// Render returns t as it would appear in the output kind "log",
	// "terminal", "markdown" or "xml", and false for a kind that it lacks.
	Render(kind string, t Text) (string, bool)
}

// Images is a sandbox that runs from image files on the host which nothing
// inside is meant to change: a read-only disk, a golden snapshot. A writable
// overlay is not one of them. P-A2 writes to the disk from inside and looks for
// it here.
type Images interface {
	ImageFiles() []string
}

// SharedTerminal is a sandbox whose processes have a terminal of the host as
// their controlling one. What is pushed back into it is read by the host.
type SharedTerminal interface {
	// HostTerminal is the path of that terminal on the host, and false where
	// there is none.
	HostTerminal() (path string, ok bool)
}
