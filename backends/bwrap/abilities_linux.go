package bwrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/open"
	"github.com/brainst0rm/sandbox-redteam/internal/open/child"
)

var (
	_ backends.Sandbox        = (*Sandbox)(nil)
	_ backends.Metered        = (*Sandbox)(nil)
	_ backends.HostProcesses  = (*Sandbox)(nil)
	_ backends.HostIdentity   = (*Sandbox)(nil)
	_ backends.HostAddresser  = (*Sandbox)(nil)
	_ backends.ChannelTapper  = (*Sandbox)(nil)
	_ backends.FrameTimer     = (*Sandbox)(nil)
	_ backends.Tamperable     = (*Sandbox)(nil)
	_ backends.Provenancer    = (*Sandbox)(nil)
	_ backends.SharedTerminal = (*Sandbox)(nil)
)

// Usage reads the cgroup of the sandbox, or sums up its processes where there
// is none.
func (s *Sandbox) Usage(context.Context) (backends.Usage, error) {
	v, err := s.present("measure the sandbox")
	if err != nil {
		return backends.Usage{}, err
	}
	if v.group != nil {
		return v.group.Usage()
	}
	return child.Usage(v.child)
}

// present returns the instance that is there, whatever its condition.
func (s *Sandbox) present(doing string) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cur == nil {
		return nil, backends.Errorf(backends.ErrToolError, doing, "the bwrap sandbox is %s", s.state)
	}
	return s.cur, nil
}

// HostPIDs lists bubblewrap and everything inside.
func (s *Sandbox) HostPIDs(context.Context) ([]int, error) {
	v, err := s.present("list the sandbox's processes")
	if err != nil {
		return nil, err
	}
	return v.child.Tree()
}

// InsideIsHost is true: there is one kernel.
func (s *Sandbox) InsideIsHost() bool { return true }

// HostCredential is whom the agent's uid maps to on the host.
func (s *Sandbox) HostCredential() backends.Credential { return identity() }

// HostAddresses are the host's loopback addresses: the sandbox has a network
// namespace of its own, and only a leak reaches them.
func (s *Sandbox) HostAddresses() []backends.HostAddress { return open.Loopback() }

// Tap passes on every byte that the present instance sends.
func (s *Sandbox) Tap(fn func(b []byte)) (stop func()) {
	v, err := s.present("tap the channel")
	if err != nil {
		return func() {}
	}
	return v.client.Tap(fn)
}

// Inject writes raw bytes to the agent.
func (s *Sandbox) Inject(ctx context.Context, b []byte) error {
	v, err := s.present("inject into the channel")
	if err != nil {
		return err
	}
	return v.client.Inject(ctx, b)
}

// Resync opens a new session with the present instance.
func (s *Sandbox) Resync(ctx context.Context) error {
	v, err := s.present("open a new session")
	if err != nil {
		return err
	}
	s.mu.Lock()
	frame := s.frame
	s.mu.Unlock()
	v.client.SetFrameTimeout(frame)
	return v.client.Resync(ctx)
}

// SetFrameTimeout sets the whole-frame deadline of the next session.
func (s *Sandbox) SetFrameTimeout(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frame = d
}

// HostTerminal is the terminal that the leak shares.
func (s *Sandbox) HostTerminal() (path string, ok bool) {
	v, err := s.present("find the terminal")
	if err != nil || v.tty == nil {
		return "", false
	}
	return v.tty.path, true
}

// Provenance says what really runs. What it lists as hardening is read from
// the host's /proc of the processes inside, not from our command line.
func (s *Sandbox) Provenance() backends.Provenance {
	s.mu.Lock()
	v, r := s.cur, s.r
	s.mu.Unlock()
	if v == nil || r == nil {
		return backends.Provenance{}
	}
	return backends.Provenance{
		Accelerator: "none", VMMPath: r.bwrap.path, VMMVersion: r.bwrap.version, VMMPID: v.child.PID(),
		Digests: maps.Clone(r.digests()), Baseline: r.kind, Hardening: v.hardening(),
	}
}

// hardening lists what is in force around the agent.
func (v *instance) hardening() []string {
	pid, err := v.agent()
	if err != nil {
		return nil
	}
	var out []string
	for _, kind := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
		in, err1 := namespace(pid, kind)
		host, err2 := namespace(os.Getpid(), kind)
		if errors.Join(err1, err2) == nil && in != host {
			out = append(out, "own "+kind+" namespace")
		}
	}
	for _, want := range []struct{ key, value, says string }{
		{"NoNewPrivs", "1", "no new privileges"}, {"Seccomp", "2", "seccomp filter"},
		{"CapEff", "0000000000000000", "no effective capabilities"}, {"CapBnd", "0000000000000000", "empty bounding set"},
	} {
		if got, err := status(pid, want.key); err == nil && got == want.value {
			out = append(out, want.says)
		}
	}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid)); err == nil {
		if f := strings.Fields(string(b)); len(f) == 3 && f[2] == "1" && f[1] != "0" {
			out = append(out, "one unprivileged host uid mapped")
		}
	}
	if v.group != nil {
		out = append(out, "memory and pids cgroup")
	}
	return out
}
