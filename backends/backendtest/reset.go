package backendtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

var hashForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// anchor runs the tool that leaves a marker inside, or looks for it.
func (s *suite) anchor(sb backends.Sandbox, marker string, drop bool) *wire.PayloadReport {
	s.Helper()
	nonce := wire.NewNonceString()
	e := s.run(sb, attack.SubstrateAnchor, attack.SubstrateAnchorParams{Nonce: nonce, Marker: marker, Drop: drop})
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.SubstrateAnchor, nonce)
	require.NoError(s, err, "stderr: %s", e.Stderr)
	return r
}

func (s *suite) dropMarker(sb backends.Sandbox) string {
	s.Helper()
	marker := wire.NewNonceString()
	r := s.anchor(sb, marker, true)
	require.True(s, r.Proved(attack.AnchorCase), "no marker could be left inside")
	return marker
}

func (s *suite) markerThere(sb backends.Sandbox, marker string) bool {
	s.Helper()
	r := s.anchor(sb, marker, false)
	tried := r.Tried(attack.AnchorCase)
	require.NotEmpty(s, tried)
	for _, a := range tried {
		if a.Op == "read" && a.Result == wire.ResultOK {
			return true
		}
	}
	return false
}

func (s *suite) reset() {
	sb := s.boot()
	for range 2 {
		marker := s.dropMarker(sb)
		require.True(s, s.markerThere(sb, marker))
		before := time.Now()
		st, err := sb.Reset(s.Context())
		require.NoError(s, err)
		require.Equal(s, backends.StateReady, sb.State())
		require.False(s, s.markerThere(sb, marker), "the marker survived a reset")
		s.wellFormed(st)
		require.True(s, st.VerificationPassed)
		require.Equal(s, backends.ActionNone, st.VerificationDetails.DivergenceAction)
		require.True(s, st.VerificationDetails.FSHashMatch)
		at, err := time.Parse(time.RFC3339Nano, st.ResetAt)
		require.NoError(s, err)
		require.WithinRange(s, at, before.Add(-2*time.Second), time.Now().Add(2*time.Second))
		s.noop(sb)
	}
	s.shutdown(sb)
}

// wellFormed checks what protocol v1 says of the form of a reset state.
func (s *suite) wellFormed(st backends.ResetState) {
	s.Helper()
	d := st.VerificationDetails
	require.Regexp(s, hashForm, st.GoldenHash)
	require.Regexp(s, hashForm, d.FSHash)
	require.Regexp(s, hashForm, d.FSHashBaseline)
	require.Equal(s, d.FSHash == d.FSHashBaseline, d.FSHashMatch)
	require.GreaterOrEqual(s, d.OpenFDCount, 0)
	require.GreaterOrEqual(s, d.OpenFDCountBaseline, 0)
	states := []string{"running", "paused", "stopped", "error"}
	require.Contains(s, states, d.VMMAPIState)
	require.Contains(s, states, d.ExpectedVMMAPIState)
}

// divergence tries every non-empty subset of the three sources.
func (s *suite) divergence() {
	all := backends.Sources()
	sb := s.make()
	for set := 1; set < 1<<len(all); set++ {
		var sources []backends.Source
		names := make([]string, 0, len(all))
		for i, src := range all {
			if set&(1<<i) != 0 {
				sources, names = append(sources, src), append(names, string(src))
			}
		}
		s.Run(strings.Join(names, "+"), func(t *testing.T) {
			sub := &suite{T: t, h: s.h, before: s.before}
			sub.diverges(sb, sources)
		})
	}
}

func (s *suite) diverges(sb backends.Sandbox, sources []backends.Source) {
	s.bootAgain(sb)
	undo := s.h.Disagree(s, sb, sources...)
	st, err := sb.Reset(s.Context())
	undo()
	require.ErrorIs(s, err, backends.ErrResetDivergence)
	var div *backends.DivergenceError
	require.ErrorAs(s, err, &div)
	require.Equal(s, sources, div.Sources)
	require.Equal(s, st, div.State, "the returned state is valid beside the error")
	s.wellFormed(st)
	require.False(s, st.VerificationPassed)
	d := st.VerificationDetails
	require.Equal(s, backends.ActionHalt, d.DivergenceAction)
	for _, src := range backends.Sources() {
		agrees := map[backends.Source]bool{
			backends.SourceFSHash:      d.FSHashMatch,
			backends.SourceOpenFDCount: d.OpenFDCount == d.OpenFDCountBaseline,
			backends.SourceVMMState:    d.VMMAPIState == d.ExpectedVMMAPIState,
		}[src]
		require.Equal(s, !slices.Contains(sources, src), agrees, "source %s", src)
	}
	require.Equal(s, backends.StateFailed, sb.State())
	_, err = sb.Execute(s.Context(), backends.Invocation{Tool: "noop"})
	s.typed(err, "execute after a divergence")
	_, err = sb.Reset(s.Context())
	s.typed(err, "reset after a divergence: there is no recovery")
	require.Equal(s, backends.StateFailed, sb.State())
	s.shutdown(sb)
}

// disagreeByTampers applies the first tamper of each source.
func disagreeByTampers(t testing.TB, sb backends.Sandbox, sources ...backends.Source) func() {
	t.Helper()
	tamperable, ok := sb.(backends.Tamperable)
	require.True(t, ok, "a backend without Tamperable needs Harness.Disagree")
	tampers := tamperable.Tampers()
	var undos []func() error
	for _, src := range sources {
		found := false
		for _, tm := range tampers {
			if tm.Source != src || tm.NotCovered != "" {
				continue
			}
			undo, err := tm.Apply(t.Context())
			require.NoError(t, err, "tamper %s", tm.Name)
			undos, found = append(undos, undo), true
			break
		}
		require.True(t, found, "no tamper for %s; Harness.Disagree is needed", src)
	}
	return func() {
		for i := len(undos) - 1; i >= 0; i-- {
			require.NoError(t, undos[i]())
		}
	}
}
