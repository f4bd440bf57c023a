package catalog

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

func TestEveryProbeIsWhole(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range All() {
		t.Run(p.Name, func(t *testing.T) {
			require.Regexp(t, regexp.MustCompile(`^P-[A-Z0-9]+(-[a-z0-9]+)+$`), p.Name)
			require.False(t, seen[p.Name], "listed twice")
			seen[p.Name] = true
			require.Contains(t, p.Name, "-"+string(p.Class)+"-", "the name carries the class")
			for what, prose := range map[string]string{"Description": p.Description, "Why": p.Why, "Limits": p.Limits, "Harm": p.Harm} {
				if what == "Harm" && p.Class == probes.ClassLatency {
					continue
				}
				require.NotEmpty(t, prose, what)
			}
			require.NotNil(t, p.Run)
			require.Contains(t, probes.Severities(), p.Severity)
			want := probes.ShouldFail
			if p.Class == probes.ClassLatency {
				want = probes.ShouldPass
			}
			require.Equal(t, want, p.Expectation)
		})
	}
}

// TestOrder holds for however many probes are listed: attacks, P-A6 last among
// them, then latencies.
func TestOrder(t *testing.T) {
	phase := func(p probes.Probe) int {
		switch p.Class {
		case probes.ClassLatency:
			return 2
		case probes.ClassSubstrate:
			return 1
		}
		return 0
	}
	list := All()
	for i := 1; i < len(list); i++ {
		require.LessOrEqual(t, phase(list[i-1]), phase(list[i]), "%s before %s", list[i-1].Name, list[i].Name)
	}
}

func some() []probes.Probe {
	return []probes.Probe{
		{Name: "P-A1-net-egress", Class: "A1"}, {Name: "P-A2-fs-escape", Class: "A2"},
		{Name: "P-A6-substrate-lie", Class: "A6"}, {Name: "P-LAT-boot", Class: "LAT"}, {Name: "P-LAT-reset", Class: "LAT"},
	}
}

func TestSelect(t *testing.T) {
	for expr, want := range map[string][]string{
		"all":                            {"P-A1-net-egress", "P-A2-fs-escape", "P-A6-substrate-lie", "P-LAT-boot", "P-LAT-reset"},
		"adversarial":                    {"P-A1-net-egress", "P-A2-fs-escape", "P-A6-substrate-lie"},
		"lat":                            {"P-LAT-boot", "P-LAT-reset"},
		"LAT":                            {"P-LAT-boot", "P-LAT-reset"},
		"A2":                             {"P-A2-fs-escape"},
		"lat, A1 ,P-A1-net-egress":       {"P-A1-net-egress", "P-LAT-boot", "P-LAT-reset"},
		"P-LAT-reset,P-A6-substrate-lie": {"P-A6-substrate-lie", "P-LAT-reset"},
	} {
		got, err := Select(some(), expr)
		require.NoError(t, err, expr)
		names := []string{}
		for _, p := range got {
			names = append(names, p.Name)
		}
		require.Equal(t, want, names, expr)
	}
}

func TestSelectNamesTheNearest(t *testing.T) {
	for expr, want := range map[string]string{"adverserial": "adversarial", "P-A1-net-egres": "P-A1-net-egress", "A1,fs-escape": "P-A2-fs-escape"} {
		_, err := Select(some(), expr)
		var unknown *UnknownError
		require.ErrorAs(t, err, &unknown, expr)
		require.Equal(t, want, unknown.Nearest)
		require.Contains(t, err.Error(), "valid: adversarial, lat, all, A1")
	}
	for _, empty := range []string{"", "all,", " ,"} {
		_, err := Select(some(), empty)
		require.ErrorContains(t, err, "empty name", empty)
	}
}

func TestFind(t *testing.T) {
	p, err := Find(some(), "p-a2-FS-escape")
	require.NoError(t, err)
	require.Equal(t, "P-A2-fs-escape", p.Name)
	_, err = Find(some(), "P-A2")
	require.ErrorContains(t, err, `did you mean "P-A2-fs-escape"?`)
}
