package agentbin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// ReleaseTag is the build tag of an executable that embeds the agents.
const ReleaseTag = "release"

// EmbeddedPath is where the source tree has the agent for goarch while a release
// is built, relative to the module's root.
func EmbeddedPath(goarch string) string {
	return "internal/agentbin/" + embeddedName(goarch)
}

func embeddedName(goarch string) string { return "embedded/" + Name + "-" + goarch }

// unpack writes the agent for goarch that fsys holds to a directory of the cache
// that is named by its digest, unless it lies there intact, and returns its path;
// "" when fsys holds none.
func unpack(fsys fs.ReadFileFS, cache, goarch string) (string, error) {
	agent, err := fsys.ReadFile(embeddedName(goarch))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the embedded agent: %w", err)
	}
	sum := sha256.Sum256(agent)
	digest := hex.EncodeToString(sum[:])
	path := filepath.Join(cache, digest, Name)
	if got, err := fileDigest(path); err == nil && got == digest && Check(path, goarch) == nil {
		return path, nil
	}
	if err := write(path, agent); err != nil {
		return "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "unpack the embedded agent", Err: err,
			Fix: "set XDG_CACHE_HOME to a writable directory, or name an agent with --agent"}
	}
	if err := Check(path, goarch); err != nil {
		return "", fmt.Errorf("the embedded agent: %w", err)
	}
	return path, nil
}

// write makes an executable file appear whole or not at all.
func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".bsm-agent-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	whole := filepath.Join(tmp, Name)
	if err := os.WriteFile(whole, content, 0o755); err != nil {
		return err
	}
	return os.Rename(whole, path)
}
