package agentbin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

const (
	module  = "github.com/brainst0rm/sandbox-redteam"
	command = module + "/cmd/" + Name
)

// buildFlags make the result depend on the sources and the Go version alone:
// no paths, no version control state, no build id.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid="}

// buildEnv pins what the environment could change about the result.
func buildEnv(goarch string) []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch,
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GODEBUG=")
}

// Build builds the agent for linux and goarch from the source tree that this
// program came from or stands in, and writes it to out atomically.
func Build(ctx context.Context, goarch, out string) error {
	root, err := sourceRoot()
	if err != nil {
		return err
	}
	return buildFrom(ctx, root, goarch, out)
}

func buildFrom(ctx context.Context, root, goarch, out string) error {
	if _, ok := machines[goarch]; !ok {
		return backends.Errorf(backends.ErrNotAvailable, "build the agent", "it is not built for %.32q, only for amd64 and arm64", goarch)
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(out), ".bsm-agent-")
	if err != nil {
		return fmt.Errorf("build the agent: %w", err)
	}
	defer os.RemoveAll(tmp)
	built := filepath.Join(tmp, Name)
	args := append(append([]string{"build"}, buildFlags...), "-o", built, command)
	if _, err := goTool(ctx, root, goarch, args...); err != nil {
		return err
	}
	if err := Check(built, goarch); err != nil {
		return fmt.Errorf("build the agent: %w", err)
	}
	if err := os.Rename(built, out); err != nil {
		return fmt.Errorf("build the agent: %w", err)
	}
	return nil
}

// Cached returns an agent for goarch from the user's cache. A release puts the one
// there that it carries; otherwise one is built first, when there is none from
// exactly the present sources and Go version.
func Cached(ctx context.Context, goarch string) (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "find a place for the agent", Err: err,
			Fix: "set XDG_CACHE_HOME to a writable directory, or name an agent with --agent"}
	}
	cache := filepath.Join(user, "bsm-redteam", "agent")
	if path, err := unpack(embedded, cache, goarch); path != "" || err != nil {
		return path, err
	}
	root, err := sourceRoot()
	if err != nil {
		return "", err
	}
	return cachedIn(ctx, cache, root, goarch)
}

func cachedIn(ctx context.Context, cache, root, goarch string) (string, error) {
	key, err := sourceKey(ctx, root, goarch)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, key)
	path, sum := filepath.Join(dir, Name), filepath.Join(dir, Name+".sha256")
	if intact(path, sum) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "make the agent's cache", Err: err,
			Fix: "set XDG_CACHE_HOME to a writable directory, or name an agent with --agent"}
	}
	if err := buildFrom(ctx, root, goarch, path); err != nil {
		return "", err
	}
	digest, err := fileDigest(path)
	if err != nil {
		return "", err
	}
	tmp := fmt.Sprintf("%s.%d", sum, os.Getpid())
	if err := errors.Join(os.WriteFile(tmp, []byte(digest), 0o600), os.Rename(tmp, sum)); err != nil {
		return "", fmt.Errorf("write the agent's digest: %w", err)
	}
	return path, nil
}

// intact reports whether path has the digest that was noted when it was built.
func intact(path, sum string) bool {
	want, err := os.ReadFile(sum)
	if err != nil {
		return false
	}
	got, err := fileDigest(path)
	return err == nil && got == string(want)
}

// A listed is what this package needs of `go list -json`.
type listed struct {
	ImportPath string
	Dir        string
	Standard   bool
	GoFiles    []string
	SFiles     []string
	HFiles     []string
	EmbedFiles []string
}

// sourceKey digests the Go version, the build's flags and the content of every
// source file that the agent is built from.
func sourceKey(ctx context.Context, root, goarch string) (string, error) {
	version, err := goTool(ctx, root, goarch, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	out, err := goTool(ctx, root, goarch, "list", "-deps", "-json=ImportPath,Dir,Standard,GoFiles,SFiles,HFiles,EmbedFiles", command)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	part := func(b []byte) {
		sum := sha256.Sum256(b)
		h.Write(sum[:])
	}
	part(version)
	part([]byte(goarch + "\x00" + strings.Join(buildFlags, "\x00")))
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("read the agent's import closure: %w", err)
		}
		if p.Standard { // the Go version stands for it
			continue
		}
		part([]byte(p.ImportPath))
		for _, files := range [][]string{p.GoFiles, p.SFiles, p.HFiles, p.EmbedFiles} {
			for _, f := range files {
				b, err := os.ReadFile(filepath.Join(p.Dir, f))
				if err != nil {
					return "", fmt.Errorf("hash the agent's sources: %w", err)
				}
				part([]byte(f))
				part(b)
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// goTool runs the go command in root and returns what it printed.
func goTool(ctx context.Context, root, goarch string, args ...string) ([]byte, error) {
	bin, err := exec.LookPath("go")
	if err != nil {
		return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "build the agent", Err: err,
			Fix: "install Go, or name a built agent with --agent or $" + EnvVar}
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = root, buildEnv(goarch), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: "build the agent with go " + args[0],
			Err: fmt.Errorf("%w: %s", err, firstLines(stderr.String())), Fix: "name a built agent with --agent or $" + EnvVar}
	}
	return stdout.Bytes(), nil
}

// firstLines keeps an error message readable.
func firstLines(s string) string {
	lines := strings.SplitN(strings.TrimSpace(s), "\n", 6)
	return strings.Join(lines[:min(len(lines), 5)], "; ")
}

// sourceRoot finds the module's source tree: where this file was compiled, above
// the executable, or above the working directory.
func sourceRoot() (string, error) {
	var starts []string
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		starts = append(starts, filepath.Dir(file))
	}
	if self, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(self))
	}
	if wd, err := os.Getwd(); err == nil {
		starts = append(starts, wd)
	}
	for _, dir := range starts {
		for ; ; dir = filepath.Dir(dir) {
			if isModule(dir) {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", &backends.Error{Code: backends.ErrNotAvailable, Doing: "find the agent",
		Err: errors.New("there is none beside this executable and no source tree to build it from"),
		Fix: "name an agent with --agent or $" + EnvVar + ", or run inside a clone of " + module}
}

func isModule(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "module" {
			return f[1] == module
		}
	}
	return false
}
