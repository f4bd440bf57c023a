package sarif

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

var update = flag.Bool("update", false, "rewrite testdata")

func encoded(t require.TestingT, r probes.Report, o Options) ([]byte, log) {
	b, err := Encode(r, o)
	require.NoError(t, err)
	var got log
	require.NoError(t, json.Unmarshal(b, &got))
	return b, got
}

// golden are the rules of the golden files, which so do not change with the prose
// of the catalogue.
var golden = []probes.Probe{
	{Name: "P-A1-net-egress", Class: "A1", Description: "Sends a token.", Why: "A canary listens.", Limits: "Two addresses.", Severity: probes.SeverityHigh,
		Harm: "exfiltration", ATTACK: []string{"T1048", "T1041"}, References: []string{"RFC 768"}},
	{Name: "P-A6-substrate-lie", Class: "A6", Description: "Changes a byte.", Why: "A reset sees it.", Limits: "One byte.", Severity: probes.SeverityCritical, Harm: "integrity"},
	{Name: "P-LAT-boot", Class: probes.ClassLatency, Description: "Boots.", Why: "A clock runs.", Limits: "One host.", Severity: probes.SeverityHigh, Harm: "self denial of service"},
}

func TestGolden(t *testing.T) {
	for name, r := range reporttest.All() {
		t.Run(name, func(t *testing.T) {
			b, err := encode(r, Options{PolicyPath: "policy.yaml"}, golden)
			require.NoError(t, err)
			file := filepath.Join("testdata", name+".sarif")
			if *update {
				require.NoError(t, os.WriteFile(file, b, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(b), "run go test -update and look at the difference")
		})
	}
}

func TestOnlyWhatFailedOrErroredIsAResult(t *testing.T) {
	for name, r := range reporttest.All() {
		t.Run(name, func(t *testing.T) {
			_, got := encoded(t, r, Options{})
			results := 0
			for _, run := range got.Runs {
				results += len(run.Results)
			}
			require.Equal(t, r.Summary.Failed+r.Summary.Errored, results)
		})
	}
}

// github checks what the documentation of code scanning asks of a file beyond
// the standard. It is the law that Encode is held to.
func github(b []byte) error {
	var all any
	if err := json.Unmarshal(b, &all); err != nil || hasNull(all) {
		return fmt.Errorf("a null, %w", err)
	}
	var doc log
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	if doc.Version != "2.1.0" || len(doc.Runs) == 0 || len(doc.Runs) > 20 {
		return fmt.Errorf("version %q, %d runs", doc.Version, len(doc.Runs))
	}
	if n, err := gzipped(b); err != nil || n > 10_000_000 {
		return fmt.Errorf("%d bytes, %w", n, err)
	}
	categories := map[string]bool{}
	for _, run := range doc.Runs {
		id := run.AutomationDetails.ID
		if !regexp.MustCompile(`^bsm-redteam/[^/]+/$`).MatchString(id) || categories[id] {
			return fmt.Errorf("category %q is malformed or there twice", id)
		}
		categories[id] = true
		if len(run.Results) > 25_000 || len(run.Tool.Driver.Rules) > 25_000 {
			return fmt.Errorf("too many results or rules")
		}
		for _, x := range run.Tool.Driver.Rules {
			if err := githubRule(x); err != nil {
				return fmt.Errorf("rule %q: %w", x.ID, err)
			}
		}
		for i, x := range run.Results {
			if err := githubResult(x, run.Tool.Driver.Rules); err != nil {
				return fmt.Errorf("result %d: %w", i, err)
			}
		}
	}
	return nil
}

func hasNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return slices.ContainsFunc(v, hasNull)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), hasNull)
	}
	return false
}

func githubRule(x rule) error {
	for _, s := range []string{x.ID, x.Name} {
		if s == "" || utf8.RuneCountInString(s) > 255 {
			return fmt.Errorf("a name of %d", len(s))
		}
	}
	for _, m := range []message{x.ShortDescription, x.FullDescription} {
		if m.Text == "" || utf8.RuneCountInString(m.Text) > 1024 {
			return fmt.Errorf("a description of %d", len(m.Text))
		}
	}
	if x.Help.Text == "" || len(x.Properties.Tags) > 20 {
		return fmt.Errorf("no help, or %d tags", len(x.Properties.Tags))
	}
	if s := x.Properties.SecuritySeverity; s != "" {
		if f, err := strconv.ParseFloat(s, 64); err != nil || f <= 0 || f > 10 {
			return fmt.Errorf("security-severity %q", s)
		}
	}
	return nil
}

func githubResult(x result, rules []rule) error {
	if x.RuleIndex < 0 || x.RuleIndex >= len(rules) || rules[x.RuleIndex].ID != x.RuleID {
		return fmt.Errorf("no rule %q at %d", x.RuleID, x.RuleIndex)
	}
	if x.Message.Text == "" || utf8.RuneCountInString(x.Message.Text) > 1024 {
		return fmt.Errorf("a message of %d", len(x.Message.Text))
	}
	if x.Level != "error" && x.Level != "warning" && x.Level != "note" {
		return fmt.Errorf("level %q", x.Level)
	}
	if len(x.Locations) != 1 || x.Locations[0].PhysicalLocation.Region.StartLine != 1 {
		return fmt.Errorf("no single location")
	}
	u, err := url.Parse(x.Locations[0].PhysicalLocation.ArtifactLocation.URI)
	if err != nil || u.Path == "" || u.IsAbs() || u.Host != "" || strings.HasPrefix(u.Path, "/") || strings.Contains("/"+u.Path+"/", "/../") {
		return fmt.Errorf("uri %v, %w", u, err)
	}
	if len(x.PartialFingerprints["primaryLocationLineHash"]) != 32 {
		return fmt.Errorf("no fingerprint")
	}
	return nil
}

func TestKeepsGitHubsLimits(t *testing.T) {
	long := reporttest.Hostile(strings.Repeat(reporttest.Nasty, 500))
	for name, r := range reporttest.All() {
		for _, o := range []Options{{}, {PolicyPath: `dir\p.yaml`}, {PolicyPath: "/abs/policy.yaml", WorkflowPath: "../up.yml"}} {
			b, _ := encoded(t, r, o)
			require.NoError(t, github(b), name)
		}
	}
	b, _ := encoded(t, long, Options{})
	require.NoError(t, github(b))
}

// TestTheLimitsBite: each rule of the check above refuses what it is there for.
func TestTheLimitsBite(t *testing.T) {
	for name, spoil := range map[string]func(*log){
		"no runs":             func(d *log) { d.Runs = []run{} },
		"many runs":           func(d *log) { d.Runs = make([]run, 21) },
		"null results":        func(d *log) { d.Runs[0].Results = nil },
		"category twice":      func(d *log) { d.Runs = append(d.Runs, d.Runs[0]) },
		"many results":        func(d *log) { d.Runs[0].Results = make([]result, 25_001) },
		"long name":           func(d *log) { d.Runs[0].Tool.Driver.Rules[0].Name = strings.Repeat("x", 256) },
		"long description":    func(d *log) { d.Runs[0].Tool.Driver.Rules[0].FullDescription.Text = strings.Repeat("x", 1025) },
		"many tags":           func(d *log) { d.Runs[0].Tool.Driver.Rules[0].Properties.Tags = make([]string, 21) },
		"severity in words":   func(d *log) { d.Runs[0].Tool.Driver.Rules[0].Properties.SecuritySeverity = "high" },
		"rule elsewhere":      func(d *log) { d.Runs[0].Results[0].RuleIndex++ },
		"no message":          func(d *log) { d.Runs[0].Results[0].Message.Text = "" },
		"no location":         func(d *log) { d.Runs[0].Results[0].Locations = []location{} },
		"no fingerprint":      func(d *log) { d.Runs[0].Results[0].PartialFingerprints = map[string]string{} },
		"a leading slash":     func(d *log) { d.Runs[0].Results[0].Locations[0].PhysicalLocation.ArtifactLocation.URI = "/etc/x" },
		"a scheme":            func(d *log) { d.Runs[0].Results[0].Locations[0].PhysicalLocation.ArtifactLocation.URI = "file:x" },
		"out of the checkout": func(d *log) { d.Runs[0].Results[0].Locations[0].PhysicalLocation.ArtifactLocation.URI = "a/../../x" },
	} {
		_, doc := encoded(t, reporttest.Failing(), Options{})
		spoil(&doc)
		b, err := json.Marshal(doc)
		require.NoError(t, err)
		require.Error(t, github(b), name)
	}
}

func TestWhatCodeScanningCannotTakeIsRefused(t *testing.T) {
	r := probes.Report{}
	for i := range 21 {
		r.Probes = append(r.Probes, probes.Result{Name: "p", Backend: strconv.Itoa(i)})
	}
	_, err := Encode(r, Options{})
	require.ErrorContains(t, err, "21 backends")
	r = probes.Report{Backend: "qemu", Probes: make([]probes.Result, 25_001)}
	_, err = Encode(r, Options{})
	require.ErrorContains(t, err, "takes 25000")
}

func TestPlace(t *testing.T) {
	for _, c := range []struct{ policy, workflow, want string }{
		{"policy.yaml", ".github/workflows/ci.yml", "policy.yaml"},
		{"", ".github/workflows/ci.yml", ".github/workflows/ci.yml"},
		{"", "", Fallback},
		{"./a/../b/policy.yaml", "", "b/policy.yaml"},
		{`ci\policy.yaml`, "", "ci/policy.yaml"},
		{"with blank#?.yaml", "", "with%20blank%23%3F.yaml"},
		{"a:b.yaml", "", Fallback},
		{"ab:c.yaml", "", "./ab:c.yaml"},
		{"/home/runner/policy.yaml", "ci.yml", "ci.yml"},
		{"../policy.yaml", "", Fallback}, {"..", "", Fallback}, {".", "", Fallback}, {`C:\policy.yaml`, "", Fallback},
		{"x\x00\xff", "", "x%00%FF"},
	} {
		require.Equal(t, c.want, place(Options{PolicyPath: c.policy, WorkflowPath: c.workflow}), "%q", c)
		require.Equal(t, c.policy != "" && c.want != Fallback && c.want != c.workflow, Usable(c.policy), c.policy)
	}
}

func TestWorkflowFile(t *testing.T) {
	for ref, want := range map[string]string{
		"octo/repo/.github/workflows/ci.yml@refs/heads/a@b": ".github/workflows/ci.yml",
		"": "", "octo/repo": "", "octo/repo/": "",
	} {
		require.Equal(t, want, WorkflowFile(ref), ref)
	}
}

// TestFingerprints: the same probe on the same backend is the same alert whatever
// was found and wherever it is shown; another one is another.
func TestFingerprints(t *testing.T) {
	prints := func(r probes.Report, o Options) map[string]string {
		_, doc := encoded(t, r, o)
		out := map[string]string{}
		for _, run := range doc.Runs {
			for _, x := range run.Results {
				out[x.Properties.Backend+" "+x.RuleID] = x.PartialFingerprints[fingerprint]
			}
		}
		return out
	}
	before := prints(reporttest.Failing(), Options{})
	changed := reporttest.Failing()
	for i := range changed.Probes {
		changed.Probes[i].Reason, changed.Probes[i].DurationMS = "another reason", 9
	}
	changed.GeneratedAt = "2027-01-01T00:00:00.000Z"
	require.Equal(t, before, prints(changed, Options{PolicyPath: "p.yaml"}))
	changed.Probes[0].Passed, changed.Probes[0].Errored, changed.Probes[0].Verdict = false, true, probes.Inconclusive
	require.Equal(t, before, prints(changed, Options{}), "an alert does not close because a run could not tell")

	seen := map[string]string{}
	for id, fp := range prints(reporttest.Merged(), Options{}) {
		require.Empty(t, seen[fp], id)
		seen[fp] = id
	}
	other := reporttest.Failing()
	other.Backend = "chv"
	for id, fp := range prints(other, Options{}) {
		require.NotEqual(t, before["qemu "+strings.TrimPrefix(id, "chv ")], fp)
	}
	require.Equal(t, "0d866d2256f79690dff79de63b32d50f", before["qemu P-A1-net-egress"], "a new fingerprint reopens every alert of every user")
}

func TestLevels(t *testing.T) {
	_, doc := encoded(t, reporttest.Failing(), Options{})
	got := map[string]string{}
	for _, x := range doc.Runs[0].Results {
		got[x.RuleID] = x.Level + " " + x.Properties.Verdict
	}
	require.Equal(t, map[string]string{
		"P-A1-net-egress": "error escaped", "P-A2-fs-escape": "warning inconclusive", "P-A3-process-escape": "warning weak",
		"P-A5-time-bomb": "warning errored", "P-LAT-boot": "warning weak",
	}, got)
	require.Equal(t, "error", level(probes.Result{}), "a failure of another program has no verdict")
}

// TestNothingTestedIsNotNothingFound: such a run does not close alerts.
func TestNothingTestedIsNotNothingFound(t *testing.T) {
	for name, want := range map[string]bool{"clean": true, "failing": true, "skipped": false, "unnamed": false, "empty": false} {
		_, doc := encoded(t, reporttest.All()[name], Options{})
		require.Len(t, doc.Runs, 1)
		require.Equal(t, want, doc.Runs[0].Invocations[0].ExecutionSuccessful, name)
	}
	_, doc := encoded(t, reporttest.Failing(), Options{Partial: true})
	require.False(t, doc.Runs[0].Invocations[0].ExecutionSuccessful, "a run that was ended early")
	require.NotEmpty(t, doc.Runs[0].Results)
	_, doc = encoded(t, reporttest.Failing(), Options{})
	var notes []string
	for _, n := range doc.Runs[0].Invocations[0].ToolExecutionNotifications {
		notes = append(notes, n.Level+" "+n.Message.Text)
	}
	require.Equal(t, []string{"warning the sandbox was weakened on purpose: user-net, no-seccomp", "note skipped: the backend has no channel", "note skipped: no renderer"}, notes)
}

func TestRulesOfTheCatalogue(t *testing.T) {
	for _, p := range catalog.All() {
		x := ruleOf(p)
		require.NoError(t, githubRule(x))
		require.FileExists(t, "../../../docs/probes/"+strings.TrimPrefix(x.HelpURI, pages))
		require.Contains(t, x.Help.Markdown, p.Why)
		require.Contains(t, x.Help.Markdown, p.Limits)
		for _, id := range p.ATTACK {
			require.Contains(t, x.Properties.Tags, "external/mitre-attack/"+id)
		}
		require.Equal(t, p.Class == probes.ClassLatency, x.Properties.SecuritySeverity == "", p.Name)
	}
}

// TestScores: severity follows who is hurt.
func TestScores(t *testing.T) {
	for _, c := range []struct {
		severity probes.Severity
		harm     string
		want     string
	}{
		{probes.SeverityCritical, "escape", "9.5"}, {probes.SeverityHigh, "host leak", "8.0"}, {probes.SeverityMedium, "exfiltration", "5.5"},
		{probes.SeverityLow, "lateral", "2.0"}, {probes.SeverityInfo, "peer denial of service", "0.1"},
		{probes.SeverityCritical, "integrity", "8.0"}, {probes.SeverityHigh, "self denial of service", "5.5"}, {probes.SeverityInfo, "internal escalation", "0.1"},
		{"of another version", "something new", "9.5"},
	} {
		require.Equal(t, c.want, score(probes.Probe{Class: "A1", Severity: c.severity, Harm: c.harm}), "%v", c)
	}
	require.Empty(t, score(probes.Probe{Class: probes.ClassLatency, Severity: probes.SeverityHigh}))
	many := ruleOf(probes.Probe{ATTACK: make([]string, 40)})
	require.Len(t, many.Properties.Tags, maxTags)
}

func TestAMessageHasNoLinks(t *testing.T) {
	p := probes.Result{Name: "P-X", Reason: "see [the fix](https://example.invalid)", Verdict: probes.Escaped}
	require.NotContains(t, says(p, "qemu"), "](")
	require.Contains(t, says(p, "qemu"), "https://example.invalid")
}

// FuzzEncode: whatever the strings of a report are, the file is one that code
// scanning takes, in printable ASCII, with every finding in it.
func FuzzEncode(f *testing.F) {
	f.Add(reporttest.Nasty, "policy.yaml")
	f.Add("\xff\xfe\x00", "/../\x00")
	f.Add(strings.Repeat("](", 3000), "C:")
	f.Fuzz(func(t *testing.T, s, path string) {
		r := reporttest.Hostile(s)
		b, doc := encoded(t, r, Options{PolicyPath: path, WorkflowPath: path})
		require.NoError(t, github(b))
		require.Len(t, doc.Runs[0].Results, r.Summary.Failed+r.Summary.Errored)
		for _, c := range b {
			require.True(t, c == '\n' || c >= 0x20 && c < 0x7f, "byte %#x", c)
		}
	})
}
