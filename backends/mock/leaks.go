package mock

import (
	"fmt"
	"slices"
	"strings"
)

// The leaks, one per attacker class, and one that makes latency fail.
const (
	leakEgress    = "leak-a1"
	leakFiles     = "leak-a2"
	leakProcesses = "leak-a3"
	leakLimits    = "leak-a4"
	leakTree      = "leak-a5"
	leakSubstrate = "leak-a6"
	leakRenderer  = "leak-a7"
	leakDecoder   = "leak-a8"
	leakLatency   = "lat-fail"
)

func leakNames() []string {
	return []string{leakEgress, leakFiles, leakProcesses, leakLimits, leakTree, leakSubstrate, leakRenderer, leakDecoder, leakLatency}
}

// latEvery is how often lat-fail fails: every so many boots, resets and calls.
const latEvery = 4

// leaks are the weaknesses of one world.
type leaks struct {
	names []string
	// open is set in the world of the control: it has no boundary at all.
	open bool
	lat  bool
}

func parseLeaks(names []string) (leaks, error) {
	for _, n := range names {
		if !slices.Contains(leakNames(), n) {
			return leaks{}, fmt.Errorf("the mock has no leak %q; it has %s", n, strings.Join(leakNames(), ", "))
		}
	}
	return leaks{names: names, lat: slices.Contains(names, leakLatency)}, nil
}

func (l leaks) has(name string) bool { return slices.Contains(l.names, name) }

// crosses reports whether an attack of the leak's class really gets out.
func (l leaks) crosses(name string) bool { return l.open || l.has(name) }

// keepTree: nothing is killed at a deadline.
func (l leaks) keepTree() bool { return l.crosses(leakTree) }

// noLimits: the host's decoder has no cap, deadline or patience. The open
// target's host end is a healthy one: its naive reader is the probe's own.
func (l leaks) noLimits() bool { return l.has(leakDecoder) }
