package hostiletest

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/cli"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/reporttest"
	"github.com/brainst0rm/sandbox-redteam/probes"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// file is a report that our reader takes, with s in every string that it leaves
// free, and as the first and last part of those that it checks.
func file(s string) probes.Report {
	s = strings.ToValidUTF8(s, "\ufffd")
	r := reporttest.Hostile(s)
	r.GeneratedAt, r.FinalSandboxState = "2026-11-21T10:00:00.000Z", backends.StateReady
	if r.Backend == "" {
		r.Backend = "x"
	}
	for i := range r.Probes {
		if p := &r.Probes[i]; p.Passed {
			p.Verdict = probes.Contained
		}
	}
	return r
}

func save(t *testing.T, r probes.Report) string {
	t.Helper()
	b, err := json.Marshal(r)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "report.json")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

func app(out, errOut io.Writer) *cli.App {
	return &cli.App{Out: out, Err: errOut, Backends: backendcatalog.All, Probes: probecatalog.All, Terminal: func(io.Writer) (int, bool) { return 0, false }, Version: "test"}
}

// verb runs one command line in this process.
func verb(t *testing.T, args ...string) (stdout, stderr []byte, code int) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = app(&out, &errOut).Run(context.Background(), args)
	return out.Bytes(), errOut.Bytes(), code
}

// verbs are the command lines that read a report.
func verbs(path, other string) map[string][]string {
	return map[string][]string{
		"gate":             {"gate", path},
		"gate-baseline":    {"gate", path, "--baseline", other, "--fail-on", "never"},
		"compare-text":     {"compare", other, path},
		"compare-markdown": {"compare", other, path, "--format", "markdown"},
		"compare-json":     {"compare", other, path, "--format", "json"},
		"merge":            {"merge", path, "-o", "-"},
		"junit":            {"report", "junit", path},
		"sarif":            {"report", "sarif", path},
		"markdown":         {"report", "markdown", path},
	}
}

// The verbs that read a report of unknown origin print nothing that is more than
// text, whatever stands in its strings, and lose nothing of it.
func TestVerbs(t *testing.T) {
	harmless := file("harmless")
	base := harmless
	base.Probes = append([]probes.Result(nil), harmless.Probes...)
	shape := map[string]string{}
	for name, args := range verbs(save(t, harmless), save(t, base)) {
		out, errOut, code := verb(t, args...)
		require.Contains(t, []int{0, 1}, code, "%s: %s", name, errOut)
		shape[name] = structure(t, name, out)
	}
	for _, s := range Few() {
		t.Run(s.Name, func(t *testing.T) {
			r := file(string(s.Bytes))
			text := []byte(r.Probes[0].Reason)
			if !utf8.Valid(s.Bytes) {
				require.Contains(t, string(text), "\ufffd")
			}
			path := save(t, r)
			other := r
			other.Probes = append([]probes.Result(nil), r.Probes...)
			for i := range other.Probes { // as another run, in which all of them passed
				p := &other.Probes[i]
				p.Passed, p.Errored, p.Verdict = true, false, probes.Contained
			}
			other.Summary = probes.Summarise(other.Probes, other.SkippedProbes)
			for name, args := range verbs(path, save(t, other)) {
				out, errOut, code := verb(t, args...)
				if name == "merge" && code == 2 { // it refuses some of these backends
					quiet(t, errOut, name)
					continue
				}
				require.Contains(t, []int{0, 1}, code, "%s: %s", name, errOut)
				require.Empty(t, sprung(out), "%s: %.2000s", name, out)
				quiet(t, errOut, name)
				require.False(t, bytes.Contains(append(out, errOut...), []byte("##[")), name)
				switch name {
				case "gate", "gate-baseline", "compare-text":
					quiet(t, out, name)
				case "merge", "markdown", "sarif", "junit", "compare-json", "compare-markdown":
					i := bytes.IndexFunc(out, func(c rune) bool {
						return c != '\n' && c != '\t' && !unicode.IsPrint(c) && c != '\ufe0f' // the last is in our own warning sign
					})
					require.Less(t, i, 0, "%s: %.300q", name, out[max(0, i-100):])
				}
				if len(bytes.TrimSpace(text)) > 0 && name != "compare-json" {
					require.True(t, shows(out, text) || len(text) > 1000 && cut.Match(out), "%s does not show it: %.1500s", name, out)
				}
				if want, ok := shape[name]; ok && s.Name != "empty" && (name == "junit" || name == "sarif" || name == "merge") {
					require.Equal(t, want, structure(t, name, out), name)
				}
			}
			out, _, code := verb(t, "merge", path, "-o", "-")
			if code == 2 {
				return
			}
			merged, err := report.Read(out)
			require.NoError(t, err)
			require.Equal(t, r.Probes[0].Reason, merged.Probes[0].Reason, "JSON keeps every byte")
			require.Equal(t, r.Probes[0].Attempts, merged.Probes[0].Attempts)
			if !slices.Contains([]string{"legacy-error", "command-after-return", "markdown-table", "matcher-go", "ansi", "xml-cdata", "bidi"}, s.Name) {
				return
			}
			again := filepath.Join(t.TempDir(), "merged.json")
			require.NoError(t, os.WriteFile(again, out, 0o600))
			for name, args := range verbs(again, again) {
				if name == "merge" {
					continue // a merged report is not merged again
				}
				out, errOut, code := verb(t, args...)
				require.Contains(t, []int{0, 1}, code, "%s: %s", name, errOut)
				require.Empty(t, sprung(out), "%s of a merged report: %.2000s", name, out)
				quiet(t, errOut, name)
			}
		})
	}
}

// cut is what stands where a text was too long.
var cut = regexp.MustCompile(` \([0-9]+ of [0-9]+ bytes, sha256 [0-9a-f]{64}\)`)

// structure is a document without its texts.
func structure(t *testing.T, name string, b []byte) string {
	t.Helper()
	switch name {
	case "junit":
		return xmlStructure(t, b)
	case "sarif", "merge", "compare-json":
		var v any
		require.NoError(t, json.Unmarshal(b, &v), "%s", b)
		out, err := json.Marshal(blank(v))
		require.NoError(t, err)
		return string(out)
	}
	return ""
}

func xmlStructure(t *testing.T, b []byte) string {
	t.Helper()
	var out strings.Builder
	d := xml.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		require.NoError(t, err)
		switch e := tok.(type) {
		case xml.StartElement:
			out.WriteString("<" + e.Name.Local)
			for _, a := range e.Attr {
				out.WriteString(" " + a.Name.Local)
			}
		case xml.EndElement:
			out.WriteString(">")
		case xml.Comment, xml.Directive:
			require.Fail(t, "not ours", "%s", e)
		}
	}
}

// blank replaces every string by a sign that there is one. Of maps whose keys are
// strings of the report, only the number of entries counts.
func blank(v any) any {
	switch v := v.(type) {
	case string:
		return "s"
	case []any:
		for i := range v {
			v[i] = blank(v[i])
		}
	case map[string]any:
		for k, x := range v {
			if k == "evidence" || k == "digests" || k == "latency" || k == "partialFingerprints" {
				m, _ := x.(map[string]any)
				v[k] = len(m)
				continue
			}
			v[k] = blank(x)
		}
	}
	return v
}

// Refusals quote what they refuse.
func TestRefusals(t *testing.T) {
	for _, s := range Few() {
		text := strings.ToValidUTF8(string(s.Bytes), "\ufffd")
		q, err := json.Marshal(text)
		require.NoError(t, err)
		good, err := json.Marshal(file("harmless"))
		require.NoError(t, err)
		for what, doc := range map[string]string{
			"raw":       string(s.Bytes),
			"key":       "{" + string(q) + ":1," + string(good[1:]),
			"twice":     "{" + string(q) + ":1," + string(q) + ":1}",
			"version":   strings.Replace(string(good), `"schema_version":"harmless"`, `"schema_version":`+string(q), 1),
			"schema":    `{"schema_version":` + string(q) + `}`,
			"state":     strings.Replace(string(good), `"final_sandbox_state":"ready"`, `"final_sandbox_state":`+string(q), 1),
			"time":      strings.Replace(string(good), `"generated_at":"2026-11-21T10:00:00.000Z"`, `"generated_at":`+string(q), 1),
			"validated": strings.Replace(string(good), `"validated_against":"validated-harmless"`, `"validated_against":`+string(q), 1),
			"number":    strings.Replace(string(good), `"duration_ms":412`, `"duration_ms":`+string(q), 1),
		} {
			path := filepath.Join(t.TempDir(), "report.json")
			require.NoError(t, os.WriteFile(path, []byte(doc), 0o600))
			for _, args := range [][]string{{"gate", path}, {"merge", path}} {
				out, errOut, code := verb(t, args...)
				if what != "validated" && what != "version" {
					require.Equal(t, 2, code, "%s %s: %s", s.Name, what, errOut)
				}
				quiet(t, errOut, s.Name, what, args)
				require.LessOrEqual(t, bytes.Count(errOut, []byte("\n")), 40, "%s %s: %s", s.Name, what, errOut)
				require.Empty(t, sprung(out))
			}
		}
		// Words of the command line are quoted too.
		for _, args := range [][]string{{"explain", text}, {text}, {"--" + text}, {"--probes", text}, {"--sandbox", text}, {"gate", text}, {"report", text}, {"--budget", text}} {
			out, errOut, _ := verb(t, args...)
			require.Empty(t, sprung(append(out, errOut...)), "%q", args)
		}
	}
}
