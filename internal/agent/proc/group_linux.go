package proc

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A group is the cgroup v2 of one call.
type group struct {
	path string
	fd   int // of the directory
}

// newGroup returns nil where no cgroup can be made; the walk over ancestry does
// without.
func newGroup(parent, tag string) *group {
	if parent == "" {
		return nil
	}
	path := filepath.Join(parent, "call-"+tag)
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = os.Remove(path)
		return nil
	}
	return &group{path: path, fd: fd}
}

// kill has the kernel kill every member at once. The walk that follows confirms
// it, and finds what has moved itself to another cgroup.
func (g *group) kill() {
	_ = os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
}

// remove waits for the kernel to let go of the dead members.
func (g *group) remove() {
	for range 200 {
		if err := os.Remove(g.path); err == nil || !errors.Is(err, unix.EBUSY) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
