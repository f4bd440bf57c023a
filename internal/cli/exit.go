// Package cli is the command line of bsm-redteam: one file per verb, flags
// bound to plain option structs, and one table of exit codes.
package cli

import (
	"errors"
	"fmt"
)

// The exit codes. They are part of the interface.
const (
	// ExitClean: nothing failed or errored; also a report of skips only.
	ExitClean = 0
	// ExitFindings: a probe failed or errored, or the report was not written.
	ExitFindings = 1
	// ExitUsage: the command line or a file that it names is wrong; nothing
	// was booted.
	ExitUsage = 2
	// ExitUnavailable: the backend cannot run here, with --on-unavailable fail.
	ExitUnavailable = 3
	// ExitHungUp, ExitInterrupted and ExitTerminated: a partial report was
	// written after SIGHUP, SIGINT or SIGTERM.
	ExitHungUp      = 129
	ExitInterrupted = 130
	ExitTerminated  = 143
)

// exitError carries an exit code out of a verb. With a nil Err nothing is
// printed: the verb has said everything.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage is an error of the command line.
func usage(err error) error { return &exitError{ExitUsage, err} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// findings is an error of the run.
func findings(err error) error { return &exitError{ExitFindings, err} }

// silent ends with a code without a further word.
func silent(code int) error {
	if code == ExitClean {
		return nil
	}
	return &exitError{code: code}
}

// codeOf maps an error to an exit code and the text to print.
func codeOf(err error) (code int, text string) {
	if err == nil {
		return ExitClean, ""
	}
	var e *exitError
	if !errors.As(err, &e) {
		return ExitUsage, err.Error() // cobra's own: an unknown flag or verb
	}
	if e.err == nil {
		return e.code, ""
	}
	return e.code, e.err.Error()
}
