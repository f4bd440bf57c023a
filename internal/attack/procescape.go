package attack

// ProcEscape is the tool of P-A3. It tries to find, signal, trace and read
// canary processes of the host. It sends a signal other than 0 only to a
// process whose command line holds the canary's id.
const ProcEscape = "proc.escape"

// The sub-cases of ProcEscape.
const (
	ProcVisible  = "visible"
	ProcSignal   = "signal"
	ProcPidfd    = "pidfd-signal"
	ProcGetfd    = "pidfd-getfd"
	ProcPtrace   = "ptrace"
	ProcVMRead   = "vm-read"
	ProcSetns    = "setns"
	ProcShm      = "sysv-shm"
	ProcHostPort = "host-port"
	ProcTTY      = "tty-pushback"
	ProcInit     = "init"
	ProcFilter   = "syscall-filter" // a fact: the seccomp mode as seen inside
)

// ProcOnCanary are the sub-cases that act on a canary process.
func ProcOnCanary() []string {
	return []string{ProcVisible, ProcVMRead, ProcGetfd, ProcPtrace, ProcPidfd, ProcSignal, ProcHostPort}
}

// ProcEscapeParams are the parameters of ProcEscape.
type ProcEscapeParams struct {
	Nonce string `json:"nonce"`
	// Canaries are keyed by sub-case. Those that leave different marks share a
	// process.
	Canaries map[string]ProcCanary `json:"canaries,omitempty"`
	// VM is set for a guest kernel of ours: only there PID 1 gets SIGTERM.
	VM bool `json:"vm,omitempty"`
	// SecretPath is read after a namespace was entered, and nothing else is
	// done there. Its content begins with SecretMarker.
	SecretPath   string `json:"secret_path,omitempty"`
	SecretMarker string `json:"secret_marker,omitempty"`
	// ShmKey is the key of a System V segment that holds a secret.
	ShmKey int `json:"shm_key,omitempty"`
	// Ports are paths to try as a host port, besides the virtio ports found
	// inside. The protocol of a port is one line, "signal PID\n".
	Ports []string `json:"ports,omitempty"`
	// OwnPort is the name of the agent's own virtio port, which is left alone.
	OwnPort string `json:"own_port,omitempty"`
	// TTY is a terminal to push TTYToken into; empty means the controlling
	// terminal, if there is one.
	TTY      string `json:"tty,omitempty"`
	TTYToken string `json:"tty_token,omitempty"`
	// Child is how the tool starts itself as its own target for the proof:
	// ChildWait waits to be signalled, ChildPush pushes TTYToken into its
	// controlling terminal.
	Child string `json:"child,omitempty"`
}

// The modes of the tool's own child.
const (
	ChildWait = "wait"
	ChildPush = "push"
)

// ProcCanary is a canary process as the payload may know it.
type ProcCanary struct {
	// PID is its number on the host.
	PID int `json:"pid"`
	// ID is in its command line. It is no secret.
	ID string `json:"id"`
	// SecretAddr is where in its memory SecretLen secret bytes are.
	SecretAddr uint64 `json:"secret_addr,omitempty"`
	SecretLen  int    `json:"secret_len,omitempty"`
	// TouchAddr is where a tracer may write eight bytes.
	TouchAddr uint64 `json:"touch_addr,omitempty"`
	// FD is a descriptor of the canary that holds a secret file.
	FD int `json:"fd,omitempty"`
}

// SignalLine is the request that a host port is asked to carry out.
const SignalLine = "signal %d\n"
