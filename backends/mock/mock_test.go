package mock

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/backends/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Harness{
		New: func(t testing.TB, leaks ...string) backends.Sandbox {
			sb, err := newSandbox(backends.Options{Leaks: leaks})
			require.NoError(t, err)
			return sb
		},
		// The mock makes nothing on the host; its goroutines are checked by
		// the suite itself.
		Leftovers: func(testing.TB) []string { return nil },
		Kill:      func(_ testing.TB, sb backends.Sandbox) { sb.(*Sandbox).inst.process.kill() },
	})
}

func TestEntry(t *testing.T) { backendtest.RunEntry(t, Entry(), backends.Options{}) }
func TestLeaks(t *testing.T) { backendtest.RunLeaks(t, Entry(), backends.Options{}) }
