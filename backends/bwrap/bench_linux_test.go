package bwrap

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func BenchmarkBoot(b *testing.B) {
	o := options(b)
	s, err := newSandbox(o)
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, s.Boot(b.Context()))
		b.StopTimer()
		require.NoError(b, s.Shutdown(b.Context()))
		b.StartTimer()
	}
}

// BenchmarkFloor is what bubblewrap itself takes, with the same namespaces.
func BenchmarkFloor(b *testing.B) {
	o := options(b)
	s := boot(b, o)
	path := s.r.bwrap.path
	yes, err := exec.LookPath("true")
	require.NoError(b, err)
	for b.Loop() {
		require.NoError(b, quiet(b.Context(), path, "--unshare-all", "--unshare-user", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", yes).Run())
	}
}

func BenchmarkReset(b *testing.B) {
	s := boot(b, options(b))
	for b.Loop() {
		_, err := s.Reset(b.Context())
		require.NoError(b, err)
	}
}

func BenchmarkRoundtrip(b *testing.B) {
	s := boot(b, options(b))
	for b.Loop() {
		_, err := s.Execute(b.Context(), backends.Invocation{Tool: "noop"})
		require.NoError(b, err)
	}
}
