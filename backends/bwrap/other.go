//go:build !linux

package bwrap

import (
	"context"
	"errors"
	"runtime"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

const fixSystem = "run bsm-redteam on Linux"

var errSystem = errors.New("bubblewrap is a Linux program, this is " + runtime.GOOS)

// New refuses on this system.
func New(o backends.Options) (backends.Sandbox, error) {
	if _, err := parseLeaks(o.Leaks); err != nil {
		return nil, err
	}
	return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "make a bwrap sandbox", Err: errSystem, Fix: fixSystem}
}

// Doctor says that this system has no bubblewrap.
func Doctor(context.Context, backends.Options) backends.Diagnosis {
	return backends.Diagnosis{Findings: []backends.Finding{{What: errSystem.Error(), Fix: fixSystem}}}
}

func refuse(context.Context, backends.Sandbox) error { return errSystem }

func proveShared(string) func(context.Context, backends.Sandbox) error         { return refuse }
func proveHostRoot(bool) func(context.Context, backends.Sandbox) error         { return refuse }
func proveSkips(backends.Source) func(context.Context, backends.Sandbox) error { return refuse }
func proveFlaky(string) func(context.Context, backends.Sandbox) error          { return refuse }
func proveHostEnv(ctx context.Context, sb backends.Sandbox) error              { return refuse(ctx, sb) }
func proveNoSeccomp(ctx context.Context, sb backends.Sandbox) error            { return refuse(ctx, sb) }
func proveTIOCSTI(ctx context.Context, sb backends.Sandbox) error              { return refuse(ctx, sb) }
func proveNoLimits(ctx context.Context, sb backends.Sandbox) error             { return refuse(ctx, sb) }
func proveKeepTree(ctx context.Context, sb backends.Sandbox) error             { return refuse(ctx, sb) }
func proveNoRestore(ctx context.Context, sb backends.Sandbox) error            { return refuse(ctx, sb) }
func proveStdoutFrames(ctx context.Context, sb backends.Sandbox) error         { return refuse(ctx, sb) }
func proveNoLimitsDecoder(ctx context.Context, sb backends.Sandbox) error      { return refuse(ctx, sb) }
