package dockerfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	root    = "../.."
	version = "v0.0.0-test"
)

// TestGoVersion: the stage that compiles has the Go version of go.mod by default.
func TestGoVersion(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	require.NoError(t, err)
	m := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(string(mod))
	require.Len(t, m, 2)
	require.Contains(t, string(text), "\nARG BUILD_BASE=golang:"+m[1]+"-")
}

// TestImage builds the image from bases made here, because a test asks no image
// registry, and attacks a machine inside.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image for minutes; fix: run without -short")
	}
	testreq.Need(t, "linux", "root", "go", "unshare", "tar", "cp", "debootstrap", "dockerd", "docker")
	e := startEngine(t)
	e.makeBases()
	e.must("build", "--network", "host", "--build-arg", "BASE=bsm-base", "--build-arg", "BUILD_BASE=bsm-build",
		"--build-arg", "VERSION="+version, "--tag", "bsm-cli", root)

	t.Run("runs as a user without privileges", func(t *testing.T) {
		id := strings.TrimSpace(e.must("run", "--rm", "--entrypoint", "id", "bsm-cli", "-u"))
		require.NotEqual(t, "0", id)
		require.NotEmpty(t, id)
	})
	t.Run("knows its version", func(t *testing.T) {
		require.True(t, strings.HasPrefix(e.must("run", "--rm", "bsm-cli", "version"), "bsm-redteam "+version+" ("))
	})
	t.Run("a machine boots inside and holds, without a network", func(t *testing.T) {
		out := e.must("run", "--rm", "--network", "none", "bsm-cli", "--sandbox", "qemu", "--probes", "A1,A2,A7", "--on-unavailable", "fail", "--output", "-")
		r := read(t, out)
		require.Equal(t, 3, r.Summary.Passed, out)
		require.Equal(t, 3, r.Summary.Total)
		for _, p := range r.Probes {
			require.Equal(t, probes.Contained, p.Verdict, p.Name)
			require.Equal(t, "validated-qemu", p.ValidatedAgainst, p.Name)
		}
		require.Equal(t, version, r.Environment.Harness)
		require.True(t, r.Environment.Host.Rootless)
	})
	t.Run("a machine that leaks is caught", func(t *testing.T) {
		out, err := e.try(nil, "run", "--rm", "--network", "none", "bsm-cli", "--sandbox", "qemu", "--leak", "user-net", "--probes", "A1", "--on-unavailable", "fail", "--output", "-")
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "%v", err)
		require.Equal(t, 1, exit.ExitCode(), "%v", err)
		r := read(t, out)
		require.Len(t, r.Probes, 1)
		require.Equal(t, probes.Escaped, r.Probes[0].Verdict)
	})
}

func read(t *testing.T, text string) probes.Report {
	t.Helper()
	r, err := report.Read([]byte(text))
	require.NoError(t, err, text)
	return r
}

// makeBases makes bsm-base, a minimal Debian from the distribution's mirror, and
// bsm-build, the same with this machine's Go and the modules that are needed.
func (e engine) makeBases() {
	t := e.t
	t.Helper()
	rootfs := filepath.Join(t.TempDir(), "rootfs")
	bootstrap := exec.CommandContext(t.Context(), "debootstrap", "--variant=minbase", "bookworm", rootfs)
	if out, err := bootstrap.CombinedOutput(); err != nil {
		testreq.Lacks(t, "debootstrap", errors.Join(err, errors.New(tail(string(out))+"; fix: let this machine reach a mirror of Debian")))
	}
	// This machine's own way to the mirror, such as a proxy.
	require.NoError(t, os.WriteFile(filepath.Join(rootfs, "etc/apt/apt.conf.d/99host"), []byte(tool(t, nil, "apt-config", "dump", "Acquire")), 0o644))
	_, err := e.try(exec.CommandContext(t.Context(), "tar", "-C", rootfs, "-c", "."), "import", "-", "bsm-base")
	require.NoError(t, err)

	context := t.TempDir()
	tool(t, nil, "cp", "-r", strings.TrimSpace(tool(t, nil, "go", "env", "GOROOT")), filepath.Join(context, "go"))
	modules := filepath.Join(t.TempDir(), "modules")
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/...")
	list.Dir = root
	list.Env = append(os.Environ(), "GOMODCACHE="+modules, "GOFLAGS=-modcacherw -mod=readonly",
		"GOPROXY=file://"+strings.TrimSpace(tool(t, nil, "go", "env", "GOMODCACHE"))+"/cache/download")
	out, err := list.CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Rename(filepath.Join(modules, "cache/download"), filepath.Join(context, "modules")))
	require.NoError(t, os.WriteFile(filepath.Join(context, "Dockerfile"), []byte(`FROM bsm-base
COPY go /usr/local/go
COPY modules /modules
ENV PATH=/usr/local/go/bin:/usr/bin:/bin GOPROXY=file:///modules GOTOOLCHAIN=local GOFLAGS=-mod=readonly
`), 0o644))
	e.must("build", "--tag", "bsm-build", context)
}
