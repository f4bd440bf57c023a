package canary

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Identity returns the host identity that the sandbox's agent would act with:
// what it says itself, else the harness's own.
func Identity(sb backends.Sandbox) backends.Credential {
	if h, ok := sb.(backends.HostIdentity); ok {
		return h.HostCredential()
	}
	return backends.Credential{UID: os.Geteuid(), GID: os.Getegid()}
}

// Reachable returns a fresh directory in which id can reach what it is given: below dir
// where id may pass through all of its parents, else below the system's
// directory for temporary files. A parent that is closed to id would look like
// a boundary. The caller removes it with remove.
func Reachable(dir string, id backends.Credential) (path string, remove func() error, err error) {
	if id.UID != os.Geteuid() && !passable(dir) {
		if dir = os.TempDir(); !passable(dir) {
			return "", nil, fmt.Errorf("%w: uid %d may not enter %s or a directory above it; fix: TMPDIR=/tmp", ErrClosed, id.UID, dir)
		}
	}
	path, err = os.MkdirTemp(dir, "bsm-canary-")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(path) }
	if err := Own(path, id); err != nil {
		_ = remove()
		return "", nil, err
	}
	return path, remove, nil
}

// ErrClosed is returned when a canary has no place that the sandbox's user could
// reach: plain file permissions would look like a boundary.
var ErrClosed = errors.New("no place for a canary")

// passable reports whether every directory of the path lets anybody through.
func passable(dir string) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false
	}
	for {
		st, err := os.Stat(dir)
		if err != nil || st.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// Own gives a file to id.
func Own(path string, id backends.Credential) error {
	if id.UID == os.Geteuid() && id.GID == os.Getegid() {
		return nil
	}
	if err := os.Chown(path, id.UID, id.GID); err != nil {
		return fmt.Errorf("give a canary to uid %d: %w", id.UID, err)
	}
	return nil
}
