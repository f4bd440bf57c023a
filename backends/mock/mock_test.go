package mock

import (
	"os"
	"os/exec"
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
			if broken := os.Getenv(brokenEnv); broken != "" {
				leaks = append(leaks, broken)
			}
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

// brokenEnv names a leak for a run of TestConformance in a process of its own.
const brokenEnv = "BSM_TEST_BROKEN_MOCK"

// The suite has to fail on a backend that breaks the contract, and at the place
// where it does.
func TestConformanceCatches(t *testing.T) {
	if os.Getenv(brokenEnv) != "" {
		t.Fatal("started within itself")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	for leak, want := range map[string]struct{ subtest, says string }{
		leakTree:      {"deadline", "beats after the deadline"},
		leakSubstrate: {"divergence", "SANDBOX_RESET_DIVERGENCE"},
	} {
		t.Run(leak, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), exe, "-test.run=TestConformance$/^("+want.subtest+")$", "-test.v")
			cmd.Env = append(os.Environ(), brokenEnv+"="+leak)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite passes a backend with %s:\n%s", leak, out)
			require.Equal(t, 1, exit.ExitCode(), "%s", out)
			require.Contains(t, string(out), want.says)
		})
	}
}

func TestEntry(t *testing.T) { backendtest.RunEntry(t, Entry(), backends.Options{}) }
func TestLeaks(t *testing.T) { backendtest.RunLeaks(t, Entry(), backends.Options{}) }
