package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/testimage"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// The matrix of leaks and probes, on every backend: each leak is proven and then
// caught by its class, each probe is failed by a leak, the base raises nothing.
func TestMatrix(t *testing.T) {
	for _, tc := range []struct {
		backend, iterations string
		need                func(t *testing.T)
	}{
		{"mock", "20", func(*testing.T) {}},
		{"bwrap", "10", func(t *testing.T) { testreq.Need(t, "bwrap") }},
		{"qemu", "4", func(t *testing.T) { testreq.Need(t, "qemu"); testimage.Dir(t); testimage.General(t) }},
	} {
		t.Run(tc.backend, func(t *testing.T) {
			tc.need(t)
			var out, log bytes.Buffer
			code := Main([]string{"calibrate", "--sandbox", tc.backend, "--iterations", tc.iterations}, &out, &log)
			require.Equal(t, ExitClean, code, "%s\n%s", log.String(), out.String())
			require.Contains(t, log.String(), "the base raised nothing")
			require.NotContains(t, out.String(), "PROBLEM")
			require.Greater(t, strings.Count(out.String(), "ESC"), 8, out.String())
		})
	}
}
