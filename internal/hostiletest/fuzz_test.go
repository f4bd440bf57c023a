package hostiletest

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/ab"
	"github.com/brainst0rm/sandbox-redteam/internal/actions"
	"github.com/brainst0rm/sandbox-redteam/internal/actions/runnertest"
	"github.com/brainst0rm/sandbox-redteam/internal/compare"
	"github.com/brainst0rm/sandbox-redteam/internal/gate"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/report/junit"
	"github.com/brainst0rm/sandbox-redteam/internal/report/markdown"
	"github.com/brainst0rm/sandbox-redteam/internal/report/sarif"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// texts are the renderings of one text.
func texts(b []byte) map[string]string {
	t := backends.NewText(b)
	// What a Text prints by itself is printed by nobody but sentences.
	out := map[string]string{"prose": untrusted.Prose(string(b), 0), "text": untrusted.Prose(t.String(), 1000)}
	for _, kind := range untrusted.Kinds() {
		out[kind], _ = untrusted.Render(kind, t, 0)
	}
	quoted, err := json.Marshal(t)
	if err == nil {
		out["json"] = string(untrusted.JSON(quoted))
	}
	return out
}

// reports are the renderings of a report with a text in every string.
func reports(t require.TestingT, b []byte) map[string][]byte {
	r := file(string(b))
	d, err := gate.Gate(r, gate.Options{})
	require.NoError(t, err)
	o := markdown.Options{OK: d.OK}
	var said bytes.Buffer
	for _, reason := range append(d.Reasons, d.Warnings...) {
		o.Reasons = append(o.Reasons, reason.Text)
		said.WriteString("gate failed: " + untrusted.Prose(reason.Text, 0) + "\n")
	}
	out := map[string][]byte{"reasons": said.Bytes(), "markdown": markdown.Summary(r, o)}
	for name, encode := range map[string]func() ([]byte, error){
		"json":  func() ([]byte, error) { return report.Encode(r) },
		"junit": func() ([]byte, error) { return junit.Encode(r) },
		"sarif": func() ([]byte, error) { return sarif.Encode(r, sarif.Options{}) },
		"compare": func() ([]byte, error) {
			c, err := compare.Compare(r, r, compare.Options{})
			if err != nil {
				return nil, err
			}
			return c.Render("text")
		},
		"ab":          func() ([]byte, error) { return interleaved(string(b)).Render("text") },
		"ab-markdown": func() ([]byte, error) { return interleaved(string(b)).Render("markdown") },
		"ab-json":     func() ([]byte, error) { return interleaved(string(b)).Render("json") },
	} {
		doc, err := encode()
		require.NoError(t, err, name)
		out[name] = doc
	}
	return out
}

// interleaved is a comparison of two policies that say nothing but s, and sandboxes
// that do.
func interleaved(s string) ab.Report {
	provenance := (&sandbox{text: s}).Provenance()
	c := ab.Configuration{Policy: s, PolicySHA256: s, Leaks: []string{s}, Sandbox: &provenance}
	return ab.Report{Base: c, Head: c, Notes: []string{s}, Harness: s, Result: ab.Result{Metrics: []ab.Metric{{Name: s}}}}
}

// annotated is what the action prints when a text is in an annotation.
func annotated(t require.TestingT, b []byte) []byte {
	var out bytes.Buffer
	job := actions.New(&out, func(string) string { return "" })
	require.NoError(t, job.Annotate([]actions.Annotation{{Level: actions.Error, Title: string(b), Message: string(b), File: string(b)}}))
	return out.Bytes()
}

func harmlessAnnotation(t require.TestingT, b []byte) {
	r := runnertest.New(runnertest.Matchers()...)
	r.Print(annotated(t, b))
	require.Len(t, r.Annotations, 1)
	require.Len(t, r.Commands, 1, "%+v", r.Commands)
	require.Equal(t, "error", r.Commands[0].Name)
	require.Empty(t, r.Annotations[0].Matcher)
	require.False(t, r.Failed)
	r.Annotations, r.Commands = nil, nil
	require.Empty(t, r.Untouched())
}

// fenced is what passes the fence of the action's log.
func fenced(t require.TestingT, b []byte) []byte {
	var out bytes.Buffer
	f := actions.NewFence(&out)
	_, err := io.Copy(f, bytes.NewReader(b))
	require.NoError(t, err)
	require.NoError(t, f.Flush())
	return out.Bytes()
}

// textsAreQuiet: the runner finds nothing in any rendering of a text.
func textsAreQuiet(t require.TestingT, b []byte) {
	for name, s := range texts(b) {
		require.Empty(t, sprung([]byte(s)), "%s: %q", name, s)
		require.Empty(t, sprung([]byte("  P-A1: "+s+": "+s)), "%s: %q", name, s)
	}
	harmlessAnnotation(t, b)
	require.Empty(t, sprung(fenced(t, b)), "%q", b)
}

// reportsAreQuiet: nor in any of a report that has it in every string.
func reportsAreQuiet(t require.TestingT, b []byte) {
	for name, doc := range reports(t, b) {
		require.Empty(t, sprung(doc), "%s: %.2000s", name, doc)
	}
}

func TestRenderers(t *testing.T) {
	for _, s := range append(Corpus(), Sample{"all", All()}, Sample{"16 MiB of NUL", make([]byte, 16<<20)}) {
		if len(s.Bytes) > 1<<20 { // a report file may not be that big
			for name, text := range texts(s.Bytes) {
				require.Empty(t, sprung([]byte(text)), name)
				require.Less(t, len(text), 10<<10, "%s of %s is bounded", name, s.Name)
				require.True(t, name == "json" || shows([]byte(text), s.Bytes), "%s of %s: %s", name, s.Name, text)
			}
			continue
		}
		textsAreQuiet(t, s.Bytes)
		for name, text := range texts(s.Bytes) {
			require.True(t, name == "json" && len(s.Bytes) > 200 || shows([]byte(text), s.Bytes), "%s of %s: %s", name, s.Name, text)
		}
	}
}

func TestRenderersOfReports(t *testing.T) {
	for _, s := range append(Few(), Sample{"all", All()}) {
		reportsAreQuiet(t, s.Bytes)
	}
}

// long is what the fuzz targets leave to TestRenderers.
const long = 1 << 10

func fuzz(f *testing.F, check func(require.TestingT, []byte)) {
	for _, s := range Few() {
		if len(s.Bytes) <= long {
			f.Add(s.Bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= long {
			check(t, b)
		}
	})
}

func FuzzTexts(f *testing.F) { fuzz(f, textsAreQuiet) }

func FuzzReports(f *testing.F) { fuzz(f, reportsAreQuiet) }
