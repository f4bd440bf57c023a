//go:build linux

package procescape

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/canary/canarytest"
)

func itoa(n int) string { return strconv.Itoa(n) }

// terminal is a sandbox that shares a terminal of the host.
type terminal struct {
	*canarytest.Sandbox
	path string
}

func (s terminal) HostTerminal() (string, bool) { return s.path, true }

func newTerminal(t *testing.T) string {
	t.Helper()
	tty, err := canary.NewTerminal(backends.Credential{UID: os.Geteuid(), GID: os.Getegid()})
	require.NoError(t, err)
	t.Cleanup(tty.Stop)
	return tty.Path
}

// newBystander is a process that is nobody's canary.
func newBystander(t *testing.T) *os.Process {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read _")
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd.Process
}
