package hostiletest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// sandbox puts a text into everything that a sandbox can say.
type sandbox struct {
	text  string
	where string // what goes wrong
	state backends.State
}

func (s *sandbox) fail(where string) error {
	if s.where == where {
		return backends.Errorf(backends.ErrToolError, "call "+s.text, "the guest says %s", s.text)
	}
	return nil
}

func (s *sandbox) Backend() string { return "hostile" }
func (s *sandbox) Boot(context.Context) error {
	if s.where == "unavailable" {
		return backends.Errorf(backends.ErrNotAvailable, "boot", "%s", s.text)
	}
	if err := s.fail("boot"); err != nil {
		return err
	}
	s.state = backends.StateReady
	return nil
}

func (s *sandbox) Execute(_ context.Context, inv backends.Invocation) (backends.Execution, error) {
	if s.where == "panic" {
		panic(s.text)
	}
	text := backends.NewText([]byte(s.text))
	if s.where == "truncated" {
		text = backends.NewTruncatedText([]byte(s.text), 1<<40, sha256.Sum256(nil))
	}
	return backends.Execution{ID: inv.ID, Stdout: text, Stderr: text}, s.fail("execute")
}

func (s *sandbox) Reset(context.Context) (backends.ResetState, error) {
	return backends.ResetState{VerificationPassed: s.where != "reset"}, s.fail("reset")
}
func (s *sandbox) Shutdown(context.Context) error { return errors.Join(s.fail("shutdown")) }
func (s *sandbox) State() backends.State          { return s.state }
func (s *sandbox) Provenance() backends.Provenance {
	return backends.Provenance{Accelerator: s.text, VMMVersion: s.text, Digests: map[string]string{s.text: s.text}, Hardening: []string{s.text}, Baseline: s.text}
}

// A sandbox that puts hostile texts into its output, errors and provenance, behind
// the command line in this process.
func TestEverythingThatASandboxSays(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("BSM_AGENT", filepath.Join(t.TempDir(), "none"))
	samples := Corpus()
	samples = append(samples, Sample{"all", All()})
	for i, s := range samples {
		where := []string{"execute", "boot", "unavailable", "reset", "shutdown", "panic", "truncated", "nothing"}[i%8]
		for _, where := range []string{where, "execute"} {
			if s.Name == "all" {
				continue
			}
			against(t, s, where)
		}
	}
	for _, where := range []string{"execute", "boot", "unavailable", "reset", "shutdown", "panic", "truncated", "nothing"} {
		against(t, samples[len(samples)-1], where)
	}
}

func against(t *testing.T, s Sample, where string) {
	t.Helper()
	var out, errOut bytes.Buffer
	a := app(&out, &errOut)
	a.Backends = func() []backends.Entry {
		return []backends.Entry{{
			Name: "hostile", Title: "a hostile guest",
			Doctor: func(context.Context, backends.Options) backends.Diagnosis {
				return backends.Diagnosis{Findings: []backends.Finding{{What: string(s.Bytes), Fix: string(s.Bytes)}}}
			},
			New: func(backends.Options) (backends.Sandbox, error) {
				return &sandbox{text: string(s.Bytes), where: where, state: backends.StateNotBooted}, nil
			},
		}}
	}
	code := a.Run(t.Context(), []string{"--sandbox", "hostile", "--probes", "A7,P-LAT-reset,P-LAT-roundtrip", "--iterations", "2", "--verbose", "-o", "-"})
	require.Contains(t, []int{0, 1}, code, "%s: %s", s.Name, errOut.Bytes())
	quiet(t, errOut.Bytes(), s.Name, where)
	require.Empty(t, sprung(out.Bytes()), "%s %s", s.Name, where)
	rep, err := report.Read(out.Bytes())
	require.NoError(t, err, "%s %s: %.500s", s.Name, where, out.Bytes())
	for _, p := range rep.Probes {
		require.NotEqual(t, probes.Escaped, p.Verdict, "%s %s: nothing crossed anything: %s", s.Name, where, p.Reason)
	}
	if where == "boot" || where == "unavailable" {
		require.Zero(t, rep.Summary.Passed)
		if len(bytes.TrimSpace(s.Bytes)) > 0 && len(s.Bytes) < 1000 {
			require.True(t, shows(out.Bytes(), []byte(strings.ReplaceAll(string(s.Bytes), "\n", "; "))) || shows(out.Bytes(), s.Bytes), "%s %s: %s", s.Name, where, out.Bytes())
		}
	}

	out.Reset()
	errOut.Reset()
	require.Zero(t, a.Run(t.Context(), []string{"doctor"}))
	require.Empty(t, sprung(append(out.Bytes(), errOut.Bytes()...)), "%s", s.Name)
}
