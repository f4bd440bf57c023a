// Package agentbin finds, unpacks or builds the agent's executable.
//
// A found agent is used as it is; one that a release carries is kept in the
// user's cache under its own digest, a built one under the digest of everything
// that it was built from, so a stale one cannot be taken for a fresh one.
package agentbin

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// EnvVar names the agent's executable.
const EnvVar = "BSM_AGENT"

// Name is the agent's file name.
const Name = "bsm-agent"

// Find returns the agent for this machine's architecture and its SHA-256 in
// lower-case hex. It takes explicit (--agent), else $BSM_AGENT, else the file
// beside this executable, else the one that a release carries, else it builds the
// agent from source. A path that was asked for and is unusable is an error, never a reason to look further.
func Find(ctx context.Context, explicit string) (path, digest string, err error) {
	for _, asked := range []struct{ path, by string }{{explicit, "--agent"}, {os.Getenv(EnvVar), "$" + EnvVar}} {
		if asked.path == "" {
			continue
		}
		path, digest, err := use(asked.path)
		if err != nil {
			return "", "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "use the agent that " + asked.by + " names", Err: err,
				Fix: "name a Linux " + Name + " executable for " + runtime.GOARCH + ", or leave " + asked.by + " out"}
		}
		return path, digest, nil
	}
	if self, err := os.Executable(); err == nil {
		path, digest, err := use(filepath.Join(filepath.Dir(self), Name))
		if err == nil {
			return path, digest, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "use the agent beside this executable", Err: err,
				Fix: "replace or remove it, or name another with --agent"}
		}
	}
	path, err = Cached(ctx, runtime.GOARCH)
	if err != nil {
		return "", "", err
	}
	return use(path)
}

// use checks that path is an agent that can run here and hashes it.
func use(path string) (string, string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	if err := Check(path, runtime.GOARCH); err != nil {
		return "", "", err
	}
	digest, err := fileDigest(path)
	return path, digest, err
}

// machines are the architectures that the agent is built for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// Check says why path cannot be an agent for goarch: it is no executable file,
// no ELF file, of another architecture, or needs a dynamic loader, which no
// guest has.
func Check(path, goarch string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is not an ELF executable: %w", path, err)
	}
	defer f.Close()
	if want, ok := machines[goarch]; !ok || f.Machine != want {
		return fmt.Errorf("%s is built for %s, not for %s", path, f.Machine, goarch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

func fileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
