//go:build linux

package open_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// uncloexec makes fd one that a harness inherited and would pass on.
func uncloexec(t *testing.T, fd int) {
	t.Helper()
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
	require.NoError(t, err)
}
