package cli

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	backendcatalog "github.com/brainst0rm/sandbox-redteam/backends/catalog"
)

func TestOnlyWhatSharesTheProcessTakesTurns(t *testing.T) {
	before := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(before)
	a := &App{Backends: backendcatalog.All}
	for _, e := range backendcatalog.All() {
		t.Setenv("GOMAXPROCS", "")
		want := 4
		if e.InProcess {
			want = 1
		}
		undo := a.takeTurns(e.Name)
		require.Equal(t, want, runtime.GOMAXPROCS(0), e.Name)
		undo()
		require.Equal(t, 4, runtime.GOMAXPROCS(0), e.Name)

		t.Setenv("GOMAXPROCS", "4")
		undo = a.takeTurns(e.Name)
		require.Equal(t, 4, runtime.GOMAXPROCS(0), "what the user set stays")
		undo()
	}
	entry, err := backendcatalog.Lookup(backendcatalog.All(), "mock")
	require.NoError(t, err)
	require.True(t, entry.InProcess)
}
