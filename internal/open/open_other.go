//go:build !linux

package open

import (
	"context"
	"errors"
	"runtime"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Target is an open target. There is none on this system.
type Target struct{}

var errSystem = errors.New("the agent runs on Linux only, not on " + runtime.GOOS)

// Start refuses: the agent is a Linux program.
func Start(context.Context, Config) (*Target, error) {
	return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "start the open target", Err: errSystem,
		Fix: "use a leaking variant of the backend as the control"}
}

// Execute refuses.
func (*Target) Execute(context.Context, backends.Invocation) (backends.Execution, error) {
	return backends.Execution{}, errSystem
}

// Close does nothing.
func (*Target) Close() error { return nil }
