package bwrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/baseline"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
)

func TestResetReplacesTheInstance(t *testing.T) {
	s := boot(t, options(t))
	old, err := s.present("look")
	require.NoError(t, err)
	for range 3 {
		call(t, s, "fs.write", map[string]string{"path": "/tmp/left", "content": "behind"})
		st, err := s.Reset(t.Context())
		require.NoError(t, err)
		require.True(t, st.VerificationPassed)
		require.NoError(t, integrity.ValidHash(st.GoldenHash))
		v, err := s.present("look")
		require.NoError(t, err)
		require.NotEqual(t, old.init, v.init)
		require.NotEqual(t, old.pidns, v.pidns)
		require.NotZero(t, call(t, s, "cat", map[string]string{"path": "/tmp/left"}).ExitCode)
		old = v
	}
}

func TestTampersDivergeAndTheControlDoesNot(t *testing.T) {
	s := boot(t, options(t))
	for _, tamper := range s.Tampers() {
		t.Run(tamper.Name, func(t *testing.T) {
			if tamper.NotCovered != "" {
				_, err := tamper.Apply(t.Context())
				require.Error(t, err)
				return
			}
			require.NoError(t, s.renew(t.Context()))
			undo, err := tamper.Apply(t.Context())
			require.NoError(t, err)
			st, err := s.ResetIgnoring(t.Context(), tamper.Source)
			require.NoError(t, err, "with the comparison off it goes unseen")
			require.True(t, st.VerificationPassed)
			require.NoError(t, undo())
			_, err = s.Reset(t.Context())
			require.NoError(t, err, "undone while an instance runs on it")
			undo, err = tamper.Apply(t.Context())
			require.NoError(t, err)
			st, err = s.Reset(t.Context())
			var d *backends.DivergenceError
			require.ErrorAs(t, err, &d)
			require.Equal(t, []backends.Source{tamper.Source}, d.Sources)
			require.Equal(t, backends.ActionHalt, st.VerificationDetails.DivergenceAction)
			require.Equal(t, backends.StateFailed, s.State())
			_, err = s.Execute(t.Context(), backends.Invocation{Tool: "noop"})
			require.ErrorIs(t, err, backends.ErrToolError)
			require.NoError(t, undo())
			require.NoError(t, s.renew(t.Context()))
			_, err = s.Reset(t.Context())
			require.NoError(t, err, "undone")
		})
	}
}

func TestByteTamperKeepsSizeAndTime(t *testing.T) {
	s := boot(t, options(t))
	before := s.r.root.dir
	undo, err := s.tamperByte(t.Context())
	require.NoError(t, err)
	a, err := os.Stat(filepath.Join(before, "etc/group"))
	require.NoError(t, err)
	b, err := os.Stat(filepath.Join(s.r.root.dir, "etc/group"))
	require.NoError(t, err)
	require.Equal(t, a.Size(), b.Size())
	require.NotEqual(t, before, s.r.root.dir, "the shared tree is left alone")
	require.NoError(t, undo())
	require.Equal(t, before, s.r.root.dir)
	digest, err := integrity.HashTree(t.Context(), before)
	require.NoError(t, err)
	require.Equal(t, s.r.root.digest, digest)
}

func TestBaselines(t *testing.T) {
	o := options(t)
	o.RequireBaseline = true
	s, err := newSandbox(o)
	require.NoError(t, err)
	require.ErrorIs(t, s.Boot(t.Context()), backends.ErrBootFailed)
	require.NoError(t, s.Shutdown(t.Context()))

	first := boot(t, options(t))
	path := filepath.Join(t.TempDir(), "baseline.json")
	f := baseline.File{Version: baseline.Version, RecordedAt: time.Now(), Identity: first.r.identity(), Baseline: first.r.base}
	require.NoError(t, baseline.Record(path, f))
	o.Baseline = path
	second := boot(t, o)
	require.Equal(t, "persisted", second.Provenance().Baseline)
	_, err = second.Reset(t.Context())
	require.NoError(t, err)

	f.Identity.Digests["agent"] = "sha256:" + strings.Repeat("1", 64)
	require.NoError(t, baseline.Record(path, f))
	third, err := newSandbox(o)
	require.NoError(t, err)
	require.ErrorIs(t, third.Boot(t.Context()), baseline.ErrStale)
	require.NoError(t, third.Shutdown(t.Context()))
}
