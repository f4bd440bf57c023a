package runner

import (
	"context"
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// unfit says why p cannot run here, "" when it can; never marks what the
// backend can never host.
func (s *session) unfit(ctx context.Context, p probes.Probe) (reason string, never bool) {
	for _, x := range s.Exclusions {
		if x.Probe == p.Name {
			return x.Reason, true
		}
	}
	if s.Foreign && !s.AllowDisruptive && len(p.SideEffects) > 0 {
		return fmt.Sprintf("it %s, and the sandbox is yours; --allow-disruptive runs it", effects(p.SideEffects)), false
	}
	for _, n := range p.Needs {
		if reason := s.lacks(ctx, n); reason != "" {
			return reason, false
		}
	}
	return "", false
}

func effects(list []probes.SideEffect) string {
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = string(e)
	}
	return strings.Join(parts, ", ")
}

// lacks says what is missing for a need.
func (s *session) lacks(ctx context.Context, n probes.Need) string {
	has := func(ok bool, what string) string {
		if ok {
			return ""
		}
		return what
	}
	switch n {
	case probes.NeedMeter:
		_, ok := s.sb.(backends.Metered)
		return has(ok, "the host cannot meter this sandbox's memory and tasks")
	case probes.NeedChannel:
		_, ok := s.sb.(backends.ChannelTapper)
		return has(ok, "this sandbox gives no raw access to its message channel")
	case probes.NeedTamper:
		_, ok := s.sb.(backends.Tamperable)
		return has(ok, "this sandbox does not expose its substrate to tampering")
	case probes.NeedReset:
		return "" // every Sandbox resets, or its backend excludes the probe
	case probes.NeedColocation:
		return has(s.coloc.ok, "harness and sandbox were not shown to share a machine: "+s.coloc.by)
	case probes.NeedFuse:
		if s.simulated() {
			return "" // nothing real is allocated
		}
		if err := s.fuse(ctx); err != nil {
			return "no kernel limit can be put around it: " + err.Error()
		}
		return ""
	}
	return fmt.Sprintf("this harness does not know the need %q", n)
}

// simulated reports whether the sandbox is the mock, in which nothing real
// happens.
func (s *session) simulated() bool { return s.sb.Backend() == mockName }
