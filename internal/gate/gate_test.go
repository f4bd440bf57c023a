package gate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func passed(name, by string) probes.Result {
	return probes.Result{Name: name, Passed: true, ValidatedAgainst: by, Verdict: probes.Contained}
}

func report(backend string, results []probes.Result, skipped ...probes.SkippedProbe) probes.Report {
	return probes.Report{SchemaVersion: "1.0", Backend: backend, FinalSandboxState: backends.StateReady,
		Probes: results, SkippedProbes: skipped, Summary: probes.Summarise(results, skipped)}
}

func TestRules(t *testing.T) {
	good := passed("P-A1", "validated-qemu")
	failed := probes.Result{Name: "P-A2", ValidatedAgainst: "validated-qemu", Reason: "escaped: shadow", Verdict: probes.Escaped}
	errored := probes.Result{Name: "P-A3", ValidatedAgainst: "validated-qemu", Errored: true, ErrorMessage: "inconclusive: no control"}
	skip := probes.SkippedProbe{Name: "P-A8", Reason: "no channel"}
	never := probes.SkippedProbe{Name: "P-A6", Reason: "no disk", NeverHosts: true}
	dead := report("qemu", []probes.Result{good})
	dead.FinalSandboxState = backends.StateFailed
	unexplained := report("qemu", []probes.Result{good})
	unexplained.Summary.Total, unexplained.Summary.Skipped = 4, 3
	unavailable := report("chv", nil, skip)
	unavailable.FinalSandboxState = backends.StateNotBooted

	for name, c := range map[string]struct {
		r    probes.Report
		o    Options
		ok   bool
		want string
	}{
		"all passed":                              {report("qemu", []probes.Result{good}), Options{}, true, "1 of 1 probes passed on qemu"},
		"one failed":                              {report("qemu", []probes.Result{good, failed}), Options{}, false, "P-A2 failed: escaped: shadow"},
		"one errored":                             {report("qemu", []probes.Result{good, errored}), Options{}, false, "P-A3 errored: inconclusive: no control"},
		"failed, fail-on regression":              {report("qemu", []probes.Result{good, failed}), Options{FailOn: FailOnRegression}, true, "1 of 2"},
		"failed, fail-on never":                   {report("qemu", []probes.Result{good, failed}), Options{FailOn: FailOnNever}, true, "1 of 2"},
		"sandbox ended failed":                    {dead, Options{}, false, "state failed"},
		"nothing passed, fail-on never":           {report("qemu", []probes.Result{failed}), Options{FailOn: FailOnNever}, false, "no probe passed"},
		"all skipped":                             {report("chv", nil, skip), Options{}, false, "no probe passed on chv: 1 of 1 were skipped"},
		"all skipped, fail-on never":              {report("chv", nil, skip), Options{FailOn: FailOnNever}, false, "no probe passed"},
		"all skipped and allowed":                 {unavailable, Options{AllowEmpty: true}, true, "nothing was tested, and that was allowed"},
		"all skipped after a boot, and allowed":   {report("chv", nil, skip), Options{AllowEmpty: true}, false, "chv booted, but skipped: P-A8 (no channel)"},
		"allow-empty does not excuse failures":    {report("qemu", []probes.Result{failed}), Options{AllowEmpty: true, FailOn: FailOnNever}, false, "no probe passed"},
		"nothing asked for":                       {report("qemu", nil), Options{}, false, "no probe passed"},
		"real and mock-only":                      {report("qemu", []probes.Result{good, passed("P-A7", probes.MockOnly)}), Options{}, false, "qemu booted, but still mock-only: P-A7"},
		"real and mock-only, fail-on never":       {report("qemu", []probes.Result{good, passed("P-A7", probes.MockOnly)}), Options{FailOn: FailOnNever}, false, "mock-only"},
		"the mock is mock-only":                   {report("stub", []probes.Result{passed("P-A7", probes.MockOnly)}), Options{}, true, "passed on stub"},
		"a skip after a boot":                     {report("qemu", []probes.Result{good}, skip), Options{}, false, "skipped: P-A8 (no channel)"},
		"a skip of what it never hosts":           {report("qemu", []probes.Result{good}, never), Options{}, true, "1 of 2"},
		"a skip without a reason":                 {unexplained, Options{}, false, "3 probes were skipped without a reason"},
		"a skip after a boot of the mock is fine": {report("stub", []probes.Result{passed("P-A7", probes.MockOnly)}, skip), Options{}, true, "1 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Gate(c.r, c.o)
			require.NoError(t, err)
			require.Equal(t, c.ok, d.OK, d.Reasons)
			require.Contains(t, d.Reasons[0].Text, c.want)
		})
	}
}

func TestRegressions(t *testing.T) {
	base := report("qemu", []probes.Result{passed("P-A1", "validated-qemu"), passed("P-A2", "validated-qemu"), {Name: "P-A3", ValidatedAgainst: "validated-qemu"}})
	weak := passed("P-A1", "validated-qemu")
	weak.Verdict = probes.Weak
	for name, c := range map[string]struct {
		now  []probes.Result
		want string
	}{
		"same":              {[]probes.Result{passed("P-A1", "validated-qemu"), passed("P-A2", "validated-qemu")}, ""},
		"one gone":          {[]probes.Result{passed("P-A1", "validated-qemu")}, "P-A2 passed in the baseline and was not run now"},
		"one failed":        {[]probes.Result{passed("P-A1", "validated-qemu"), {Name: "P-A2", ValidatedAgainst: "validated-qemu"}}, "P-A2 passed in the baseline and failed now"},
		"one errored":       {[]probes.Result{passed("P-A1", "validated-qemu"), {Name: "P-A2", Errored: true, ValidatedAgainst: "validated-qemu"}}, "P-A2 passed in the baseline and errored now"},
		"one weaker":        {[]probes.Result{weak, passed("P-A2", "validated-qemu")}, "P-A1 was contained in the baseline and is weak now"},
		"less proven":       {[]probes.Result{passed("P-A1", probes.MockOnly), passed("P-A2", "validated-qemu")}, "P-A1 was validated-qemu in the baseline and is mock-only now"},
		"an old failure is": {[]probes.Result{passed("P-A1", "validated-qemu"), passed("P-A2", "validated-qemu"), {Name: "P-A3", ValidatedAgainst: "validated-qemu"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Gate(report("qemu", c.now), Options{FailOn: FailOnRegression, Baseline: &base})
			require.NoError(t, err)
			if c.want == "" {
				require.True(t, d.OK, d.Reasons)
				return
			}
			require.False(t, d.OK)
			require.Contains(t, d.Reasons[0].Text, c.want)
		})
	}
}

func TestABaselineThatCannotBeComparedIsAnError(t *testing.T) {
	now := report("qemu", []probes.Result{passed("P-A1", "validated-qemu")})
	for name, base := range map[string]probes.Report{
		"backend": report("chv", []probes.Result{passed("P-A1", "validated-chv")}),
		"empty":   report("qemu", nil),
		"schema":  {SchemaVersion: "0.9", Backend: "qemu"},
	} {
		for _, on := range []FailOn{FailOnFailure, FailOnRegression, FailOnNever} {
			_, err := Gate(now, Options{FailOn: on, Baseline: &base})
			require.ErrorIs(t, err, ErrBaseline, name)
		}
	}
}
