package wire

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ToolFunc is one tool of the agent. It runs in a process of its own (in the
// mock: in a goroutine) and returns the exit code. It must honour ctx where it
// can; the agent kills its whole process tree at the deadline anyway.
type ToolFunc func(ctx context.Context, in ToolInput) int

// ToolInput is what a tool gets.
type ToolInput struct {
	Name   string
	Params json.RawMessage
	Stdout io.Writer
	Stderr io.Writer
	// Channel is the agent's end of the message channel. Only a tool that is
	// registered for it gets it; nil otherwise.
	Channel io.Writer
}

// Result classes of an attempt. They keep apart what an exit code mixes up:
// that a thing is not there, that it was refused, and that it was reached.
type Result string

// The classes. Absent and Denied are different facts: ENOSYS says that the
// kernel lacks the call, EPERM that someone forbade it. Reached is an errno
// that only the code behind the check returns (EINVAL, EFAULT), so the check
// let the call through.
const (
	ResultOK          Result = "ok"
	ResultAbsent      Result = "absent"      // ENOSYS, ENOENT, ENODEV, ENXIO, EAFNOSUPPORT, ...
	ResultDenied      Result = "denied"      // EPERM, EACCES, EROFS
	ResultUnreachable Result = "unreachable" // ENETUNREACH, EHOSTUNREACH, ENETDOWN, EADDRNOTAVAIL
	ResultRefused     Result = "refused"     // ECONNREFUSED, ECONNRESET, EPIPE
	ResultReached     Result = "reached"     // EINVAL, EFAULT, EBADF, ENOTTY, ENOEXEC
	ResultTimeout     Result = "timeout"     // no answer in time
	ResultLimited     Result = "limited"     // ENOMEM, EAGAIN, ENOSPC, EMFILE, ENFILE, EDQUOT
	ResultError       Result = "error"       // anything else
)

// MaxAttemptData bounds the bytes that one attempt brings back.
const MaxAttemptData = 4 << 10

// MaxAttempts bounds the list of attempts that the host accepts.
const MaxAttempts = 4096

// Attempt is one thing that an attack tool tried, and what came of it.
type Attempt struct {
	// Case is the sub-case of the probe that the attempt belongs to.
	Case string `json:"case"`
	// Op is what was tried: "connect", "read", "kill".
	Op string `json:"op"`
	// Target is what it was tried on, as the host named it.
	Target string `json:"target,omitempty"`
	Result Result `json:"result"`
	// Errno is the symbolic name, such as "ECONNREFUSED"; empty for ok.
	Errno string `json:"errno,omitempty"`
	// Detail adds a short fact, such as a byte count.
	Detail string `json:"detail,omitempty"`
	// Data is what came back, at most MaxAttemptData bytes.
	Data []byte `json:"data,omitempty"`
}

// PayloadReport is what an attack tool prints: proof that the same code path
// succeeds against a target inside the sandbox, then what it tried on the
// boundary. Binding ties both to the host's nonce.
type PayloadReport struct {
	Nonce    string    `json:"nonce"`
	Tool     string    `json:"tool"`
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	PID      int       `json:"pid"`
	Proof    []Attempt `json:"proof"`
	Attempts []Attempt `json:"attempts"`
	// Facts are further observations by name, for the report only.
	Facts   map[string]string `json:"facts,omitempty"`
	Binding string            `json:"binding"`
}

// binding hashes everything before it.
func (r *PayloadReport) binding() string {
	c := *r
	c.Binding = ""
	b, err := json.Marshal(&c)
	if err != nil { // no field can fail to marshal
		return ""
	}
	sum := sha256.Sum256(append([]byte("bsm-payload-v1\x00"), b...))
	return hex.EncodeToString(sum[:])
}

// Recorder collects a PayloadReport. It is not safe for concurrent use.
type Recorder struct{ r PayloadReport }

// NewRecorder begins the report of tool under the host's nonce.
func NewRecorder(tool, nonce string) *Recorder {
	return &Recorder{PayloadReport{Nonce: nonce, Tool: tool, UID: os.Getuid(), GID: os.Getgid(), PID: os.Getpid(),
		Proof: []Attempt{}, Attempts: []Attempt{}}}
}

// Prove records an attempt on a target inside the sandbox.
func (r *Recorder) Prove(a Attempt) { r.r.Proof = append(r.r.Proof, clip(a)) }

// Try records an attempt on the boundary.
func (r *Recorder) Try(a Attempt) {
	if len(r.r.Attempts) < MaxAttempts {
		r.r.Attempts = append(r.r.Attempts, clip(a))
	}
}

// Fact records an observation.
func (r *Recorder) Fact(name, value string) {
	if r.r.Facts == nil {
		r.r.Facts = map[string]string{}
	}
	r.r.Facts[name] = value
}

// Write binds the report and prints it as one line of JSON.
func (r *Recorder) Write(w io.Writer) error {
	r.r.Binding = r.r.binding()
	return json.NewEncoder(w).Encode(&r.r)
}

func clip(a Attempt) Attempt {
	if len(a.Data) > MaxAttemptData {
		a.Data = a.Data[:MaxAttemptData]
	}
	return a
}

// Outcome makes an Attempt from the error that an operation returned.
func Outcome(cas, op, target string, err error) Attempt {
	a := Attempt{Case: cas, Op: op, Target: target}
	a.Result, a.Errno = Classify(err)
	if err != nil && a.Errno == "" {
		a.Detail = err.Error()
	}
	return a
}

// Classify sorts an error into a result class and names its errno.
func Classify(err error) (Result, string) {
	if err == nil {
		return ResultOK, ""
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return classifyErrno(errno), errnoName(errno)
	}
	var t interface{ Timeout() bool }
	switch {
	case errors.As(err, &t) && t.Timeout():
		return ResultTimeout, ""
	case errors.Is(err, fs.ErrNotExist):
		return ResultAbsent, ""
	case errors.Is(err, fs.ErrPermission):
		return ResultDenied, ""
	}
	return ResultError, ""
}

func classifyErrno(e syscall.Errno) Result {
	switch e {
	case syscall.ENOSYS, syscall.ENOENT, syscall.ENODEV, syscall.ENXIO, syscall.EAFNOSUPPORT,
		syscall.EPROTONOSUPPORT, syscall.ESRCH, syscall.ENOTDIR, syscall.EOPNOTSUPP:
		return ResultAbsent
	case syscall.EPERM, syscall.EACCES, syscall.EROFS:
		return ResultDenied
	case syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL, syscall.EHOSTDOWN:
		return ResultUnreachable
	case syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE:
		return ResultRefused
	case syscall.ETIMEDOUT:
		return ResultTimeout
	case syscall.EINVAL, syscall.EFAULT, syscall.EBADF, syscall.ENOTTY, syscall.ENOEXEC, syscall.ESTALE:
		return ResultReached
	case syscall.ENOMEM, syscall.EAGAIN, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE, syscall.EDQUOT, syscall.EFBIG:
		return ResultLimited
	}
	return ResultError
}

// Why a payload report was not accepted.
var (
	// ErrNotAPayloadReport is returned for output that is not one report.
	ErrNotAPayloadReport = errors.New("output is not a payload report")
	// ErrNotBound is returned for a report with another nonce or tool, or
	// whose binding does not match its contents.
	ErrNotBound = errors.New("payload report is not bound to this execution")
	// ErrNothingProved is returned for a report without a successful attempt
	// on a target inside the sandbox.
	ErrNothingProved = errors.New("payload did not show that it can work inside")
	// ErrNothingTried is returned for a report without any attempt.
	ErrNothingTried = errors.New("payload tried nothing")
)

// ParsePayloadReport decodes and checks what an attack tool printed, and makes
// its strings safe to print. It shows that the tool ran and which attempts it lists; what they achieved is for the
// host's witness to say.
func ParsePayloadReport(out []byte, tool, nonce string) (*PayloadReport, error) {
	if _, err := Fields(out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAPayloadReport, err)
	}
	var r PayloadReport
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAPayloadReport, err)
	}
	if r.Nonce != nonce || r.Tool != tool || r.Binding == "" || r.Binding != r.binding() {
		return nil, ErrNotBound
	}
	if len(r.Attempts) > MaxAttempts {
		return nil, fmt.Errorf("%w: %d attempts", ErrNotAPayloadReport, len(r.Attempts))
	}
	r.clean()
	return &r, nil
}

// maxDetail bounds every string of a report that the guest chose.
const maxDetail = 512

// clean makes the guest's strings safe to print. Data keeps its bytes: it
// leaves the process only as base64.
func (r *PayloadReport) clean() {
	for _, list := range [][]Attempt{r.Proof, r.Attempts} {
		for i := range list {
			a := &list[i]
			for _, s := range []*string{&a.Case, &a.Op, &a.Target, (*string)(&a.Result), &a.Errno, &a.Detail} {
				*s = cleaned(*s)
			}
		}
	}
	facts := make(map[string]string, len(r.Facts))
	for k, v := range r.Facts {
		facts[cleaned(k)] = cleaned(v)
	}
	r.Facts = facts
}

func cleaned(s string) string {
	if len(s) <= maxDetail {
		return Escape([]byte(s))
	}
	return fmt.Sprintf("%s (%d of %d bytes, sha256 %x)", Escape([]byte(s[:maxDetail])), maxDetail, len(s), sha256.Sum256([]byte(s)))
}

// Proved reports whether the report shows a success inside the sandbox for the
// sub-case.
func (r *PayloadReport) Proved(cas string) bool {
	for _, a := range r.Proof {
		if a.Case == cas && a.Result == ResultOK {
			return true
		}
	}
	return false
}

// Tried returns the attempts of a sub-case.
func (r *PayloadReport) Tried(cas string) []Attempt {
	var out []Attempt
	for _, a := range r.Attempts {
		if a.Case == cas {
			out = append(out, a)
		}
	}
	return out
}
