package report

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openTemp opens a file without a name in dir, so that a run that is killed
// leaves nothing there, or a named one where the file system has no such files.
func openTemp(dir, name string, mode os.FileMode) (*temp, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, uint32(mode.Perm()))
	if err != nil {
		return namedTemp(filepath.Join(dir, name), mode)
	}
	path := filepath.Join(dir, name)
	return &temp{File: os.NewFile(uintptr(fd), path), path: path, give: func(f *os.File) error {
		// Through /proc, because linking by descriptor alone needs a capability.
		from := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		if err := unix.Linkat(unix.AT_FDCWD, from, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
			return &os.LinkError{Op: "link", Old: "the finished report", New: path, Err: err}
		}
		return nil
	}}, nil
}
