package runner_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A foreign sandbox and a foreign probe, in a module of their own, compile
// against the public API, and the runner tells a limit from its absence.
func TestForeignModule(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := t.TempDir()
	copyFile := func(from, to string) {
		b, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), b, 0o600))
	}
	copyFile("testdata/foreign/main.go", "main.go")
	copyFile("../../go.sum", "go.sum")
	const self = "github.com/brainst0rm/sandbox-redteam"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"),
		[]byte("module example.com/foreign\n\ngo 1.26\n\nrequire "+self+" v0.0.0\n\nreplace "+self+" => "+root+"\n"), 0o600))

	cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	require.Equal(t, `{"passed":true,"state":"ready","validated_against":"mock-only","verdict":"contained"}
{"passed":false,"state":"ready","validated_against":"mock-only","verdict":"escaped"}
`, string(out))
}
