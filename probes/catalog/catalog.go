// Package catalog lists the probes of this program, explicitly and in the order
// in which they run, and selects from them.
package catalog

import (
	"fmt"
	"slices"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/nearest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// The batteries.
const (
	BatteryAdversarial = "adversarial"
	BatteryLatency     = "lat"
	BatteryAll         = "all"
)

// Batteries lists the names of the batteries.
func Batteries() []string { return []string{BatteryAdversarial, BatteryLatency, BatteryAll} }

// UnknownError names a selection that matches nothing, and the nearest that does.
type UnknownError struct {
	Word, Nearest string
	Valid         []string
}

func (e *UnknownError) Error() string {
	if e.Word == "" {
		return "empty name in the probe list; valid: " + strings.Join(e.Valid, ", ")
	}
	return fmt.Sprintf("unknown probe, class or battery %q; did you mean %q? valid: %s", e.Word, e.Nearest, strings.Join(e.Valid, ", "))
}

// Select returns the probes of all that expr names: a comma list of batteries,
// attacker classes and probe names. Each appears once, in the order of all.
func Select(all []probes.Probe, expr string) ([]probes.Probe, error) {
	chosen := map[string]bool{}
	for word := range strings.SplitSeq(expr, ",") {
		word = strings.TrimSpace(word)
		found := false
		for _, p := range all {
			if matches(p, word) {
				chosen[p.Name], found = true, true
			}
		}
		if !found {
			valid := words(all)
			return nil, &UnknownError{Word: word, Nearest: nearest.To(word, valid), Valid: valid}
		}
	}
	var out []probes.Probe
	for _, p := range all {
		if chosen[p.Name] {
			out = append(out, p)
		}
	}
	return out, nil
}

// matches reports whether word names p, its class or a battery that it is in.
// Classes and batteries are found in any case; LAT is both.
func matches(p probes.Probe, word string) bool {
	latency := p.Class == probes.ClassLatency
	switch strings.ToLower(word) {
	case BatteryAll:
		return true
	case BatteryAdversarial:
		return !latency
	case BatteryLatency:
		return latency
	}
	return p.Name == word || strings.EqualFold(string(p.Class), word)
}

// words lists everything that may be asked for.
func words(all []probes.Probe) []string {
	out := Batteries()
	for _, p := range all {
		if !slices.Contains(out, string(p.Class)) && !strings.EqualFold(string(p.Class), BatteryLatency) {
			out = append(out, string(p.Class))
		}
	}
	for _, p := range all {
		out = append(out, p.Name)
	}
	return out
}

// Find returns the probe of that name.
func Find(all []probes.Probe, name string) (probes.Probe, error) {
	names := make([]string, len(all))
	for i, p := range all {
		if strings.EqualFold(p.Name, name) {
			return p, nil
		}
		names[i] = p.Name
	}
	return probes.Probe{}, &UnknownError{Word: name, Nearest: nearest.To(name, names), Valid: names}
}
