package calibrate_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// A leak that expects a probe which does not exist would be left out of every
// matrix without a word.
func TestEveryExpectedProbeExists(t *testing.T) {
	all := catalog.All()
	for _, e := range backendcatalog.All() {
		for _, l := range e.Leaks {
			right := false
			for _, name := range l.Expect {
				i := slices.IndexFunc(all, func(p probes.Probe) bool { return p.Name == name })
				require.NotEqual(t, -1, i, "%s: leak %s expects %s, which is no probe", e.Name, l.Name, name)
				require.False(t, slices.ContainsFunc(e.NeverHosts, func(x backends.Exclusion) bool { return x.Probe == name }),
					"%s: leak %s expects %s, which it never hosts", e.Name, l.Name, name)
				right = right || string(all[i].Class) == l.Class
			}
			require.True(t, right, "%s: leak %s of class %s expects no probe of its class", e.Name, l.Name, l.Class)
		}
	}
}
