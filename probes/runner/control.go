package runner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/fuse"
	"github.com/brainst0rm/sandbox-redteam/internal/open"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// openTarget starts the open target for a control: with the host identity that
// the sandboxed agent would have, so that permissions never look like a boundary.
func (s *session) openTarget(ctx context.Context, sb backends.Sandbox, dir string, o probes.OpenOptions) (probes.Target, error) {
	if s.Open != nil {
		return s.Open(ctx, sb, o)
	}
	if c, ok := sb.(backends.Controlled); ok {
		exec, closer, err := c.OpenTarget(ctx)
		if err != nil {
			return nil, fmt.Errorf("open target of %s: %w", sb.Backend(), err)
		}
		return target(exec, closer), nil
	}
	if s.Agent == "" {
		return nil, errors.New("no agent to run on this host; fix: name one with --agent")
	}
	c := open.Config{Agent: s.Agent, Dir: dir, MemoryBytes: o.MemoryBytes, Pids: o.Pids, KeepTree: o.KeepTree,
		Credential: backends.Credential{UID: os.Geteuid(), GID: os.Getegid()}, Ledger: s.Ledger, Log: s.log}
	if id, ok := sb.(backends.HostIdentity); ok {
		c.Credential = id.HostCredential()
	}
	t, err := open.Start(ctx, c)
	if err != nil {
		return nil, err // not a typed nil in a non-nil interface
	}
	return t, nil
}

func (s *session) fuse(ctx context.Context) error {
	if s.Fuse != nil {
		return s.Fuse(ctx)
	}
	return fuse.Available(ctx)
}

type controlled struct {
	backends.Executor
	closer func() error
}

func (c controlled) Close() error { return c.closer() }

// target makes a Target of an Executor. Probes find its abilities by type
// assertion, so the wrapper has to have exactly those that e has.
func target(e backends.Executor, closer func() error) probes.Target {
	t := controlled{e, closer}
	m, isM := e.(backends.Metered)
	h, isH := e.(backends.HostProcesses)
	c, isC := e.(backends.ChannelTapper)
	switch {
	case isM && isH && isC:
		return struct {
			controlled
			backends.Metered
			backends.HostProcesses
			backends.ChannelTapper
		}{t, m, h, c}
	case isM && isH:
		return struct {
			controlled
			backends.Metered
			backends.HostProcesses
		}{t, m, h}
	case isM && isC:
		return struct {
			controlled
			backends.Metered
			backends.ChannelTapper
		}{t, m, c}
	case isH && isC:
		return struct {
			controlled
			backends.HostProcesses
			backends.ChannelTapper
		}{t, h, c}
	case isM:
		return struct {
			controlled
			backends.Metered
		}{t, m}
	case isH:
		return struct {
			controlled
			backends.HostProcesses
		}{t, h}
	case isC:
		return struct {
			controlled
			backends.ChannelTapper
		}{t, c}
	}
	return t
}
