package integrity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	goldenHash = hashPrefix + strings.Repeat("ab", 32)
	otherHash  = hashPrefix + strings.Repeat("cd", 32)
	base       = Baseline{FSHash: goldenHash, OpenFDCount: 7, VMMState: StateRunning}
)

// sources answers as base does, but for the sources named in lie.
func sources(lie ...backends.Source) Readings {
	hash, fds, state := base.FSHash, base.OpenFDCount, base.VMMState
	for _, s := range lie {
		switch s {
		case backends.SourceFSHash:
			hash = otherHash
		case backends.SourceOpenFDCount:
			fds++
		case backends.SourceVMMState:
			state = StatePaused
		}
	}
	return Readings{
		FSHash:      func(context.Context) (string, error) { return hash, nil },
		OpenFDCount: func(context.Context) (int, error) { return fds, nil },
		VMMState:    func(context.Context) (string, error) { return state, nil },
	}
}

func TestVerifyAllAgree(t *testing.T) {
	st, err := Verify(t.Context(), "golden", base, sources())
	require.NoError(t, err)
	require.True(t, st.VerificationPassed)
	require.Equal(t, backends.VerificationDetails{
		FSHash: goldenHash, FSHashBaseline: goldenHash, FSHashMatch: true,
		OpenFDCount: 7, OpenFDCountBaseline: 7, VMMAPIState: "running", ExpectedVMMAPIState: "running",
		DivergenceAction: backends.ActionNone,
	}, st.VerificationDetails)
	require.Equal(t, "golden", st.GoldenHash)
	_, err = time.Parse(time.RFC3339Nano, st.ResetAt)
	require.NoError(t, err)
}

func TestVerifyEverySubsetOfDisagreeingSourcesHalts(t *testing.T) {
	all := backends.Sources()
	for bits := 1; bits < 1<<len(all); bits++ {
		var lie []backends.Source
		for i, s := range all {
			if bits&(1<<i) != 0 {
				lie = append(lie, s)
			}
		}
		t.Run(fmt.Sprint(lie), func(t *testing.T) {
			st, err := Verify(t.Context(), goldenHash, base, sources(lie...))
			require.ErrorIs(t, err, backends.ErrResetDivergence)
			var d *backends.DivergenceError
			require.ErrorAs(t, err, &d)
			require.Equal(t, lie, d.Sources)
			require.Equal(t, st, d.State)
			require.False(t, st.VerificationPassed)
			require.Equal(t, backends.ActionHalt, st.VerificationDetails.DivergenceAction)

			// With exactly these comparisons off the tamper goes unseen, and
			// with any of them on it is seen.
			st, err = Verify(t.Context(), goldenHash, base, sources(lie...), lie...)
			require.NoError(t, err)
			require.True(t, st.VerificationPassed)
			_, err = Verify(t.Context(), goldenHash, base, sources(lie...), lie[1:]...)
			require.ErrorIs(t, err, backends.ErrResetDivergence)
		})
	}
}

func TestVerifySilentSources(t *testing.T) {
	v := Verifier{Settling: 20 * time.Millisecond}
	silent := func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
	silentInt := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }

	t.Run("one silent source disagrees", func(t *testing.T) {
		r := sources()
		r.OpenFDCount = silentInt
		st, err := v.Verify(t.Context(), goldenHash, base, r)
		var d *backends.DivergenceError
		require.ErrorAs(t, err, &d)
		require.Equal(t, []backends.Source{backends.SourceOpenFDCount}, d.Sources)
		require.Zero(t, st.VerificationDetails.OpenFDCount)
	})
	t.Run("a silent count does not agree with a baseline of zero", func(t *testing.T) {
		zero := base
		zero.OpenFDCount = 0
		r := sources()
		r.OpenFDCount = silentInt
		_, err := v.Verify(t.Context(), goldenHash, zero, r)
		require.ErrorIs(t, err, backends.ErrResetDivergence)
	})
	t.Run("a silent state does not agree with a baseline of error", func(t *testing.T) {
		bad := base
		bad.VMMState = StateError
		r := sources()
		r.VMMState = silent
		_, err := v.Verify(t.Context(), goldenHash, bad, r)
		require.ErrorIs(t, err, backends.ErrResetDivergence)
	})
	t.Run("a silent source takes no time from one that answered", func(t *testing.T) {
		for range 10 { // a tie between answer and clock would be decided by chance
			r := sources()
			r.FSHash = silent
			_, err := v.Verify(t.Context(), goldenHash, base, r)
			var d *backends.DivergenceError
			require.ErrorAs(t, err, &d)
			require.Equal(t, []backends.Source{backends.SourceFSHash}, d.Sources)
		}
	})
	t.Run("all silent", func(t *testing.T) {
		start := time.Now()
		st, err := v.Verify(t.Context(), goldenHash, base, Readings{FSHash: silent, OpenFDCount: silentInt, VMMState: silent})
		require.ErrorIs(t, err, backends.ErrResetTimeout)
		require.NotErrorIs(t, err, backends.ErrResetDivergence)
		require.GreaterOrEqual(t, time.Since(start), 2*v.Settling, "asked twice")
		require.Equal(t, StateError, st.VerificationDetails.VMMAPIState)
		require.True(t, isHash(st.VerificationDetails.FSHash))
	})
	t.Run("one failure is forgiven, a lie is not asked again", func(t *testing.T) {
		asked, lies := 0, 0
		r := sources()
		r.VMMState = func(context.Context) (string, error) {
			if asked++; asked == 1 {
				return "", errors.New("connection reset")
			}
			return StateRunning, nil
		}
		_, err := v.Verify(t.Context(), goldenHash, base, r)
		require.NoError(t, err)
		require.Equal(t, 2, asked)
		r.VMMState = func(context.Context) (string, error) { lies++; return StatePaused, nil }
		_, err = v.Verify(t.Context(), goldenHash, base, r)
		require.ErrorIs(t, err, backends.ErrResetDivergence)
		require.Equal(t, 1, lies)
	})
	t.Run("a source that ignores its context", func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		r := sources()
		r.FSHash = func(context.Context) (string, error) { <-release; return goldenHash, nil }
		_, err := v.Verify(t.Context(), goldenHash, base, r)
		require.ErrorIs(t, err, backends.ErrResetDivergence)
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := Verify(ctx, goldenHash, base, sources())
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestVerifyOddAnswers(t *testing.T) {
	for name, change := range map[string]func(*Readings){
		"not a hash":     func(r *Readings) { r.FSHash = func(context.Context) (string, error) { return "golden", nil } },
		"negative count": func(r *Readings) { r.OpenFDCount = func(context.Context) (int, error) { return -1, nil } },
		"unknown state":  func(r *Readings) { r.VMMState = func(context.Context) (string, error) { return "inmigrate", nil } },
	} {
		t.Run(name, func(t *testing.T) {
			r := sources()
			change(&r)
			st, err := Verify(t.Context(), goldenHash, base, r)
			require.ErrorIs(t, err, backends.ErrResetDivergence)
			require.GreaterOrEqual(t, st.VerificationDetails.OpenFDCount, 0)
			require.True(t, validState(st.VerificationDetails.VMMAPIState))
		})
	}
}

func TestBaselineRefused(t *testing.T) {
	for name, b := range map[string]Baseline{
		"sha256 of nothing": {FSHash: emptyHash, OpenFDCount: 7, VMMState: StateRunning},
		"zeros":             {FSHash: noHash, OpenFDCount: 7, VMMState: StateRunning},
		"no hash":           {OpenFDCount: 7, VMMState: StateRunning},
		"upper case":        {FSHash: hashPrefix + strings.Repeat("AB", 32), VMMState: StateRunning},
		"negative count":    {FSHash: goldenHash, OpenFDCount: -1, VMMState: StateRunning},
		"no state":          {FSHash: goldenHash},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, b.Validate())
			_, err := Verify(t.Context(), goldenHash, b, sources())
			require.ErrorIs(t, err, backends.ErrResetFailed)
		})
	}
	require.NoError(t, base.Validate())
}
