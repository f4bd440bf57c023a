package canary

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A change through a mapping raises no event of its own: the digest shows it.
func TestChangeThroughAMappingIsSeen(t *testing.T) {
	s, err := NewSecret(t.TempDir(), me)
	require.NoError(t, err)
	defer s.Stop()
	f, err := os.OpenFile(s.Path, os.O_RDWR, 0)
	require.NoError(t, err)
	b, err := unix.Mmap(int(f.Fd()), 0, 16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	b[0] ^= 1
	require.NoError(t, unix.Munmap(b))
	require.NoError(t, f.Close())
	a, err := s.Observe()
	require.NoError(t, err)
	require.True(t, a.Modified)
}

// A watch that the kernel dropped is no watch.
func TestBlindSecretFailsItsTest(t *testing.T) {
	s, err := NewSecret(t.TempDir(), me)
	require.NoError(t, err)
	defer s.Stop()
	require.NoError(t, s.SelfCheck(t.Context()))
	_, err = unix.InotifyRmWatch(int(s.notify.Fd()), 1)
	require.NoError(t, err)
	_, err = s.Observe()
	require.NoError(t, err)
	require.Error(t, s.SelfCheck(t.Context()))
}
