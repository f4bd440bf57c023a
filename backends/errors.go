package backends

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Code is a stable error code. A Code is itself an error, so that
// errors.Is(err, backends.ErrToolTimeout) asks the question whatever concrete
// type carries the details.
type Code string

// Error returns the code itself.
func (c Code) Error() string { return string(c) }

// The codes of protocol v1, and those that this implementation adds.
const (
	ErrNotAvailable        Code = "SANDBOX_NOT_AVAILABLE"
	ErrBootFailed          Code = "SANDBOX_BOOT_FAILED"
	ErrToolTimeout         Code = "SANDBOX_TOOL_TIMEOUT"
	ErrToolError           Code = "SANDBOX_TOOL_ERROR"
	ErrResetFailed         Code = "SANDBOX_RESET_FAILED"
	ErrResetDivergence     Code = "SANDBOX_RESET_DIVERGENCE"
	ErrResetTimeout        Code = "SANDBOX_RESET_TIMEOUT"
	ErrHandshakeFailed     Code = "SANDBOX_VSOCK_HANDSHAKE_FAILED"
	ErrFrameTooLarge       Code = "SANDBOX_VSOCK_FRAME_TOO_LARGE"
	ErrFrameMalformed      Code = "SANDBOX_VSOCK_FRAME_MALFORMED"
	ErrClosed              Code = "SANDBOX_VSOCK_CLOSED"
	ErrPartialFrameTimeout Code = "SANDBOX_VSOCK_PARTIAL_FRAME_TIMEOUT"
	ErrDuplicateRequest    Code = "SANDBOX_VSOCK_DUPLICATE_REQUEST"
	ErrProtocol            Code = "SANDBOX_VSOCK_PROTOCOL_ERROR"
)

// Codes lists every code, for documentation and tests.
func Codes() []Code {
	return []Code{
		ErrNotAvailable, ErrBootFailed, ErrToolTimeout, ErrToolError, ErrResetFailed,
		ErrResetDivergence, ErrResetTimeout, ErrHandshakeFailed, ErrFrameTooLarge,
		ErrFrameMalformed, ErrClosed, ErrPartialFrameTimeout, ErrDuplicateRequest, ErrProtocol,
	}
}

// Error is the general error of this package: a code, what was being done, why
// it failed, and, where the user can do something about it, what.
type Error struct {
	Code Code
	// Doing says what was attempted and on what, such as "start qemu".
	Doing string
	// Err is the cause; it may be nil.
	Err error
	// Fix is an instruction to the user, such as "apt-get install bubblewrap".
	Fix string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Doing)
	if e.Err != nil {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	if b.Len() == 0 {
		b.WriteString(string(e.Code))
	} else {
		fmt.Fprintf(&b, " (%s)", e.Code)
	}
	if e.Fix != "" {
		b.WriteString("; fix: ")
		b.WriteString(e.Fix)
	}
	return b.String()
}

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool { c, ok := target.(Code); return ok && c == e.Code }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf builds an *Error whose cause is formatted as by fmt.Errorf.
func Errorf(code Code, doing, format string, args ...any) *Error {
	return &Error{Code: code, Doing: doing, Err: fmt.Errorf(format, args...)}
}

// FixOf returns the advice of the first *Error in the chain that has one.
func FixOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Fix != "" {
			return e.Fix
		}
		err = e.Err
	}
	return ""
}

// CodeOf returns the code of err, or "" when it carries none.
func CodeOf(err error) Code {
	for _, c := range Codes() {
		if errors.Is(err, c) {
			return c
		}
	}
	return ""
}

// ToolTimeoutError says that a tool was still running at its deadline and that
// its process tree is dead now.
type ToolTimeoutError struct {
	Tool     string
	ID       string
	Deadline time.Duration
	// Elapsed is the host's time from dispatch to confirmed death.
	Elapsed time.Duration
	// SandboxKilled is set when the agent did not confirm the death in time
	// and the whole sandbox was ended instead.
	SandboxKilled bool
}

func (e *ToolTimeoutError) Error() string {
	how := "its process tree was killed"
	if e.SandboxKilled {
		how = "the agent did not confirm its death, so the sandbox was killed"
	}
	return fmt.Sprintf("tool %s ran past its deadline of %s; %s (%s)", e.Tool, e.Deadline, how, ErrToolTimeout)
}

// Is reports whether target is ErrToolTimeout.
func (e *ToolTimeoutError) Is(target error) bool { return target == ErrToolTimeout }

// FrameTooLargeError says that a peer announced a frame over the cap.
type FrameTooLargeError struct{ Declared, Max uint64 }

func (e *FrameTooLargeError) Error() string {
	return fmt.Sprintf("frame of %d bytes announced, at most %d are accepted (%s)", e.Declared, e.Max, ErrFrameTooLarge)
}

// Is reports whether target is ErrFrameTooLarge.
func (e *FrameTooLargeError) Is(target error) bool { return target == ErrFrameTooLarge }

// DivergenceError says that after a reset at least one source disagreed with
// its baseline. State holds all three, with divergence_action "halt".
type DivergenceError struct {
	State ResetState
	// Sources are those that disagreed, in report order.
	Sources []Source
}

func (e *DivergenceError) Error() string {
	names := make([]string, len(e.Sources))
	for i, s := range e.Sources {
		names[i] = string(s)
	}
	return fmt.Sprintf("reset diverged from the baseline in %s; the sandbox is halted (%s)", strings.Join(names, ", "), ErrResetDivergence)
}

// Is reports whether target is ErrResetDivergence.
func (e *DivergenceError) Is(target error) bool { return target == ErrResetDivergence }
