package gate

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func passed(name, by string) probes.Result {
	return probes.Result{Name: name, Passed: true, ValidatedAgainst: by, Verdict: probes.Contained}
}

func reportOf(backend string, results []probes.Result, skipped ...probes.SkippedProbe) probes.Report {
	return probes.Report{SchemaVersion: "1.0", Backend: backend, FinalSandboxState: backends.StateReady,
		Probes: results, SkippedProbes: skipped, Summary: probes.Summarise(results, skipped)}
}

func TestRules(t *testing.T) {
	good := passed("P-A1", "validated-qemu")
	failed := probes.Result{Name: "P-A2", ValidatedAgainst: "validated-qemu", Reason: "escaped: shadow", Verdict: probes.Escaped}
	errored := probes.Result{Name: "P-A3", ValidatedAgainst: "validated-qemu", Errored: true, ErrorMessage: "inconclusive: no control"}
	skip := probes.SkippedProbe{Name: "P-A8", Reason: "no channel"}
	never := probes.SkippedProbe{Name: "P-A6", Reason: "no disk", NeverHosts: true}
	dead := reportOf("qemu", []probes.Result{good})
	dead.FinalSandboxState = backends.StateFailed
	unexplained := reportOf("qemu", []probes.Result{good})
	unexplained.Summary.Total, unexplained.Summary.Skipped = 4, 3
	before := reportOf("qemu", []probes.Result{good, failed})
	unavailable := reportOf("chv", nil, skip)
	unavailable.FinalSandboxState = backends.StateNotBooted

	for name, c := range map[string]struct {
		r    probes.Report
		o    Options
		ok   bool
		want string
	}{
		"all passed":                              {reportOf("qemu", []probes.Result{good}), Options{}, true, "1 of 1 probes passed on qemu"},
		"one failed":                              {reportOf("qemu", []probes.Result{good, failed}), Options{}, false, "P-A2 failed: escaped: shadow"},
		"one errored":                             {reportOf("qemu", []probes.Result{good, errored}), Options{}, false, "P-A3 errored: inconclusive: no control"},
		"failed, fail-on regression":              {reportOf("qemu", []probes.Result{good, failed}), Options{FailOn: FailOnRegression, Baseline: &before}, true, "1 of 2"},
		"failed, fail-on never":                   {reportOf("qemu", []probes.Result{good, failed}), Options{FailOn: FailOnNever}, true, "1 of 2"},
		"sandbox ended failed":                    {dead, Options{}, false, "state failed"},
		"nothing passed, fail-on never":           {reportOf("qemu", []probes.Result{failed}), Options{FailOn: FailOnNever}, false, "no probe passed"},
		"all skipped":                             {reportOf("chv", nil, skip), Options{}, false, "no probe passed on chv: 1 of 1 were skipped"},
		"all skipped, fail-on never":              {reportOf("chv", nil, skip), Options{FailOn: FailOnNever}, false, "no probe passed"},
		"all skipped and allowed":                 {unavailable, Options{AllowEmpty: true}, true, "nothing was tested, and that was allowed"},
		"all skipped after a boot, and allowed":   {reportOf("chv", nil, skip), Options{AllowEmpty: true}, false, "chv booted, but skipped: P-A8 (no channel)"},
		"allow-empty does not excuse failures":    {reportOf("qemu", []probes.Result{failed}), Options{AllowEmpty: true, FailOn: FailOnNever}, false, "no probe passed"},
		"nothing asked for":                       {reportOf("qemu", nil), Options{}, false, "no probe passed"},
		"real and mock-only":                      {reportOf("qemu", []probes.Result{good, passed("P-A7", probes.MockOnly)}), Options{}, false, "qemu booted, but still mock-only: P-A7"},
		"real and mock-only, fail-on never":       {reportOf("qemu", []probes.Result{good, passed("P-A7", probes.MockOnly)}), Options{FailOn: FailOnNever}, false, "mock-only"},
		"the mock is mock-only":                   {reportOf("stub", []probes.Result{passed("P-A7", probes.MockOnly)}), Options{}, true, "passed on stub"},
		"a skip after a boot":                     {reportOf("qemu", []probes.Result{good}, skip), Options{}, false, "skipped: P-A8 (no channel)"},
		"a skip of what it never hosts":           {reportOf("qemu", []probes.Result{good}, never), Options{}, true, "1 of 2"},
		"a skip without a reason":                 {unexplained, Options{}, false, "3 probes were skipped without a reason"},
		"a skip after a boot of the mock is fine": {reportOf("stub", []probes.Result{passed("P-A7", probes.MockOnly)}, skip), Options{}, true, "1 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Gate(c.r, c.o)
			require.NoError(t, err)
			require.Equal(t, c.ok, d.OK, d.Reasons)
			require.Contains(t, d.Reasons[0].Text, c.want)
		})
	}
}

// TestEveryRuleUnderEveryFailOn: which of the rules decide is the whole of what
// fail-on changes.
func TestEveryRuleUnderEveryFailOn(t *testing.T) {
	good := passed("P-A1", "validated-qemu")
	bad := probes.Result{Name: "P-A2", ValidatedAgainst: "validated-qemu", Reason: "escaped: shadow", Verdict: probes.Escaped, Severity: probes.SeverityHigh}
	lost := probes.Result{Name: "P-A3", ValidatedAgainst: "validated-qemu", Errored: true, ErrorMessage: "no control"}
	skip := probes.SkippedProbe{Name: "P-A8", Reason: "no channel"}
	base := reportOf("qemu", []probes.Result{good, passed("P-A2", "validated-qemu")})
	dead := reportOf("qemu", []probes.Result{good})
	dead.FinalSandboxState = backends.StateFailed
	absent := reportOf("qemu", nil, skip)
	absent.FinalSandboxState = backends.StateNotBooted

	const failure, regression, never = 1, 2, 4
	for name, c := range map[string]struct {
		r     probes.Report
		o     Options
		kind  Kind
		fails int
	}{
		"clean":                 {reportOf("qemu", []probes.Result{good}), Options{}, KindAccepted, 0},
		"failed":                {reportOf("qemu", []probes.Result{good, bad}), Options{}, KindFailed, failure},
		"errored":               {reportOf("qemu", []probes.Result{good, lost}), Options{}, KindErrored, failure},
		"sandbox failed":        {dead, Options{}, KindState, failure},
		"regression":            {reportOf("qemu", []probes.Result{good, bad}), Options{Baseline: &base}, KindRegression, failure | regression},
		"empty":                 {absent, Options{}, KindEmpty, failure | regression | never},
		"nothing passed":        {reportOf("qemu", []probes.Result{bad}), Options{}, KindEmpty, failure | regression | never},
		"allowed, but it ran":   {reportOf("qemu", []probes.Result{bad}), Options{AllowEmpty: true}, KindEmpty, failure | regression | never},
		"mock-only":             {reportOf("qemu", []probes.Result{good, passed("P-A7", probes.MockOnly)}), Options{}, KindMockOnly, failure | regression | never},
		"proved elsewhere":      {reportOf("qemu", []probes.Result{good, passed("P-A7", "validated-chv")}), Options{}, KindMockOnly, failure | regression | never},
		"skipped after a boot":  {reportOf("qemu", []probes.Result{good}, skip), Options{}, KindSkipped, failure | regression | never},
		"the same with empty":   {reportOf("qemu", nil, skip), Options{AllowEmpty: true}, KindSkipped, failure | regression | never},
		"both, of two machines": {reportOf("chv", []probes.Result{passed("P-A1", probes.ValidatedBoth)}), Options{}, KindAccepted, 0},
		"both, but of qemu":     {reportOf("qemu", []probes.Result{passed("P-A1", probes.ValidatedBoth)}), Options{}, KindMockOnly, failure | regression | never},
	} {
		for bit, on := range map[int]FailOn{failure: FailOnFailure, regression: FailOnRegression, never: FailOnNever} {
			t.Run(name+", "+string(on), func(t *testing.T) {
				c.o.FailOn = on
				if on == FailOnRegression && c.o.Baseline == nil {
					before := c.r // as it was, or once fine
					if before.Summary.Passed == 0 {
						before = reportOf(c.r.Backend, []probes.Result{passed("P-A1", "validated-"+c.r.Backend)})
					}
					c.o.Baseline = &before
				}
				d, err := Gate(c.r, c.o)
				require.NoError(t, err)
				require.Equal(t, c.fails&bit == 0, d.OK, d.Reasons)
				require.NotEmpty(t, d.Reasons)
				if !d.OK {
					require.True(t, has(d.Reasons, c.kind), d.Reasons)
					return
				}
				require.Len(t, d.Reasons, 1)
				require.Equal(t, KindAccepted, d.Reasons[0].Kind)
				require.True(t, c.kind == KindAccepted || has(d.Warnings, c.kind), "what fail-on tolerates is still said: %v", d.Warnings)
			})
		}
	}
}

// TestFailOnRegressionNeedsABaseline: without one it could never fail.
func TestFailOnRegressionNeedsABaseline(t *testing.T) {
	r := reportOf("qemu", []probes.Result{passed("P-A1", "validated-qemu")})
	_, err := Gate(r, Options{FailOn: FailOnRegression})
	require.EqualError(t, err, "regression compares with a baseline, and there is none")
	_, err = Gate(r, Options{FailOn: "nver"})
	require.ErrorContains(t, err, `"nver" is none of failure, regression, never`)
}

func has(list []Reason, k Kind) bool {
	return slices.ContainsFunc(list, func(r Reason) bool { return r.Kind == k })
}

// TestABootThatFailedIsNotCalledABoot: every reason is true. That nothing passed
// fails the gate under every rule all the same.
func TestABootThatFailedIsNotCalledABoot(t *testing.T) {
	lost := probes.Result{Name: "P-A1", ValidatedAgainst: probes.MockOnly, Errored: true, ErrorMessage: "not run, the sandbox did not boot"}
	for _, state := range []backends.State{backends.StateNotBooted, backends.StateFailed} {
		r := reportOf("qemu", []probes.Result{lost}, probes.SkippedProbe{Name: "P-A8", Reason: "interrupted"})
		r.FinalSandboxState = state
		d, err := Gate(r, Options{FailOn: FailOnNever, AllowEmpty: true})
		require.NoError(t, err)
		require.False(t, d.OK)
		require.True(t, has(d.Reasons, KindEmpty), d.Reasons)
		require.False(t, has(d.Reasons, KindMockOnly) || has(d.Reasons, KindSkipped), d.Reasons)

		r.Environment = &probes.Environment{Sandbox: &backends.Provenance{}}
		d, err = Gate(r, Options{})
		require.NoError(t, err)
		require.Equal(t, state == backends.StateFailed, has(d.Reasons, KindMockOnly), "it came up and failed later: %v", d.Reasons)
	}
}

func TestReasonsSayWhatTheyAreAbout(t *testing.T) {
	bad := probes.Result{Name: "P-A2", ValidatedAgainst: "validated-qemu", Reason: "escaped: shadow", Verdict: probes.Escaped, Severity: probes.SeverityHigh}
	d, err := Gate(reportOf("qemu", []probes.Result{passed("P-A1", "validated-qemu"), bad}), Options{})
	require.NoError(t, err)
	require.Equal(t, []Reason{{Kind: KindFailed, Probe: "P-A2", Backend: "qemu", Severity: probes.SeverityHigh, Text: "P-A2 failed: escaped: shadow"}}, d.Reasons)
	require.False(t, d.Compared)
}

func TestWarnings(t *testing.T) {
	mock := reportOf("stub", []probes.Result{passed("P-A1", probes.MockOnly)})
	d, err := Gate(mock, Options{})
	require.NoError(t, err)
	require.True(t, d.OK, "a mock run is gated like any other")
	require.True(t, has(d.Warnings, KindMock))
	require.Contains(t, d.Warnings[0].Text, "proves nothing about a boundary")

	weak := passed("P-A1", "validated-qemu")
	weak.Verdict, weak.Severity, weak.Reason = probes.Weak, probes.SeverityLow, "weak: caps: CAP_X"
	r := reportOf("qemu", []probes.Result{weak})
	r.Environment = &probes.Environment{Leaks: []string{"user-net"}}
	d, err = Gate(r, Options{})
	require.NoError(t, err)
	require.True(t, d.OK)
	require.True(t, has(d.Warnings, KindWeak))
	require.True(t, has(d.Warnings, KindLeaks))
	require.False(t, has(d.Warnings, KindMock))
}

// merged is a report of several backends, as bsm-redteam merge writes it.
func merged(results []probes.Result, skipped []probes.SkippedProbe, runs ...probes.MergedRun) probes.Report {
	return probes.Report{SchemaVersion: "1.0", Backend: "qemu+bwrap", FinalSandboxState: backends.StateReady, Probes: results, SkippedProbes: skipped,
		Summary: probes.Summarise(results, skipped), MergedFrom: runs}
}

func TestNoBackendHidesBehindAnother(t *testing.T) {
	on := func(backend string, r probes.Result) probes.Result { r.Backend = backend; return r }
	good := on("qemu", passed("P-A1", "validated-qemu"))
	gone := probes.SkippedProbe{Name: "P-A1", Reason: "not available", Backend: "bwrap"}
	ran := func(backend string, st backends.State) probes.MergedRun {
		return probes.MergedRun{Backend: backend, FinalSandboxState: st}
	}
	for name, c := range map[string]struct {
		r    probes.Report
		o    Options
		want string // empty: it passes
	}{
		"both passed":                     {merged([]probes.Result{good, on("bwrap", passed("P-A1", "validated-bwrap"))}, nil), Options{}, ""},
		"one is empty":                    {merged([]probes.Result{good}, []probes.SkippedProbe{gone}), Options{FailOn: FailOnNever}, "no probe passed on bwrap: 1 of 1 were skipped"},
		"one is empty, and allowed":       {merged([]probes.Result{good}, []probes.SkippedProbe{gone}), Options{AllowEmpty: true}, ""},
		"one booted and skipped all":      {merged([]probes.Result{good}, []probes.SkippedProbe{gone}, ran("bwrap", backends.StateReady)), Options{AllowEmpty: true}, "bwrap booted, but skipped: P-A1 (not available)"},
		"one passed only on the other":    {merged([]probes.Result{good, on("bwrap", passed("P-A1", "validated-qemu"))}, nil), Options{}, "bwrap booted, but still mock-only: P-A1"},
		"one is the mock":                 {merged([]probes.Result{good, on("stub", passed("P-A1", probes.MockOnly))}, nil), Options{FailOn: FailOnNever}, "a real backend booted, but 1 probes of this report ran on the mock"},
		"one failed":                      {merged([]probes.Result{good, on("bwrap", passed("P-A2", "validated-bwrap")), on("bwrap", probes.Result{Name: "P-A1", ValidatedAgainst: "validated-bwrap", Reason: "escaped"})}, nil), Options{}, "bwrap/P-A1 failed: escaped"},
		"validated by both, and one qemu": {merged([]probes.Result{on("chv", passed("P-A1", probes.ValidatedBoth)), on("vf", passed("P-A1", probes.ValidatedBoth)), on("qemu", passed("P-A1", probes.ValidatedBoth))}, nil), Options{}, "qemu booted, but still mock-only: P-A1"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Gate(c.r, c.o)
			require.NoError(t, err)
			if c.want == "" {
				require.True(t, d.OK, d.Reasons)
				return
			}
			require.False(t, d.OK)
			require.Equal(t, c.want, firstOf(d.Reasons, c.want))
		})
	}
	d, err := Gate(merged([]probes.Result{good, on("stub", passed("P-A1", probes.MockOnly))}, nil,
		probes.MergedRun{Backend: "qemu", Environment: &probes.Environment{Leaks: []string{"user-net"}}}), Options{})
	require.NoError(t, err)
	require.True(t, has(d.Warnings, KindMock))
	require.True(t, has(d.Warnings, KindLeaks))
}

// firstOf returns the reason that begins as want does, or all of them to show.
func firstOf(list []Reason, want string) string {
	var all []string
	for _, r := range list {
		if strings.HasPrefix(r.Text, want) {
			return want
		}
		all = append(all, r.Text)
	}
	return strings.Join(all, "\n")
}

func TestRegressions(t *testing.T) {
	base := reportOf("qemu", []probes.Result{passed("P-A1", "validated-qemu"), passed("P-A2", "validated-qemu"), {Name: "P-A3", ValidatedAgainst: "validated-qemu"}})
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
			d, err := Gate(reportOf("qemu", c.now), Options{FailOn: FailOnRegression, Baseline: &base})
			require.NoError(t, err)
			if c.want == "" {
				require.True(t, d.OK, d.Reasons)
				return
			}
			require.False(t, d.OK)
			require.Contains(t, d.Reasons[0].Text, c.want)
			require.True(t, d.Compared)
			require.Equal(t, 1, d.Regressions)
		})
	}
}

// TestABaselineThatWasMadeOtherwiseIsSaid: what leaked before cannot get worse.
func TestABaselineThatWasMadeOtherwiseIsSaid(t *testing.T) {
	made := func(policy string, leaks ...string) probes.Report {
		r := reportOf("qemu", []probes.Result{passed("P-A1", "validated-qemu")})
		r.Environment = &probes.Environment{Harness: "v1", Policy: policy, Leaks: leaks, FailSeverity: probes.SeverityMedium}
		return r
	}
	base := made("strict", "user-net")
	base.Environment.FailSeverity = probes.SeverityCritical
	for _, on := range []FailOn{FailOnFailure, FailOnRegression, FailOnNever} {
		d, err := Gate(made("loose"), Options{FailOn: on, Baseline: &base})
		require.NoError(t, err)
		require.True(t, d.OK)
		var said []string
		for _, w := range d.Warnings {
			require.Equal(t, KindBaseline, w.Kind)
			said = append(said, w.Text)
		}
		require.Equal(t, []string{"the baseline was made otherwise: policy was strict and is loose", "the baseline was made otherwise: leaks was user-net and is none",
			"the baseline was made otherwise: fail-severity was critical and is medium"}, said)
	}
	base = made("loose")
	d, err := Gate(made("loose"), Options{Baseline: &base})
	require.NoError(t, err)
	require.Empty(t, d.Warnings)
}

func TestABaselineThatCannotBeComparedIsAnError(t *testing.T) {
	now := reportOf("qemu", []probes.Result{passed("P-A1", "validated-qemu")})
	for name, base := range map[string]probes.Report{
		"backend": reportOf("chv", []probes.Result{passed("P-A1", "validated-chv")}),
		"empty":   reportOf("qemu", nil),
		"schema":  {SchemaVersion: "0.9", Backend: "qemu"},
	} {
		for _, on := range []FailOn{FailOnFailure, FailOnRegression, FailOnNever} {
			_, err := Gate(now, Options{FailOn: on, Baseline: &base})
			require.ErrorIs(t, err, ErrBaseline, name)
		}
	}
}
