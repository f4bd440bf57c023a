package e2e

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/internal/cli"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// TestEveryProbeCanFail draws up the matrix of leaks and probes of every backend
// that this version has, as `bsm-redteam calibrate` does.
func TestEveryProbeCanFail(t *testing.T) {
	for _, b := range []struct {
		name  string
		needs []string
		slow  bool
	}{
		{name: "mock"},
		{name: "bwrap", needs: []string{"linux", "bwrap", "userns", "cgroup"}},
		{name: "qemu", needs: []string{"linux", "qemu"}, slow: true},
	} {
		t.Run(b.name, func(t *testing.T) {
			testreq.Need(t, b.needs...)
			if b.slow && testing.Short() {
				t.Skip("the matrix of a VM takes minutes; leave -short out")
			}
			var out, errOut bytes.Buffer
			a := &cli.App{Out: &out, Err: &errOut, Version: "test", Backends: backendcatalog.All, Probes: probecatalog.All,
				Terminal: func(io.Writer) (int, bool) { return 0, false }}
			code := a.Run(t.Context(), []string{"calibrate", "--sandbox", b.name, "--iterations", "8"})
			t.Log(out.String())
			require.Zero(t, code, errOut.String())
		})
	}
}
