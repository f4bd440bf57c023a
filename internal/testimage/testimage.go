// Package testimage gives tests the guest image that a user would boot, with
// the agent of this source tree. It is built once per machine and content:
// test processes that run at the same time wait for each other, and an image of
// another agent is never reused.
package testimage

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// An image is made once per test process; tests share the result.
var (
	plain   = sync.OnceValues(func() (image.Manifest, error) { return ensure(image.Distro) })
	general = sync.OnceValues(func() (image.Manifest, error) { return ensure(image.DistroGeneric) })
)

func ensure(kernel string) (image.Manifest, error) {
	ctx := context.Background()
	agent, sum, err := agentbin.Find(ctx, "")
	if err != nil {
		return image.Manifest{}, err
	}
	cache, err := image.DefaultCacheDir()
	if err != nil {
		return image.Manifest{}, err
	}
	return image.Ensure(ctx, image.Options{CacheDir: cache, Arch: runtime.GOARCH, Kernel: kernel, Agent: agent, AgentSHA256: sum})
}

// Dir returns the directory of the default image for this machine. It skips
// where apt is missing, unless the job requires it; any other failure is a
// failure of the test.
func Dir(t testing.TB) string {
	t.Helper()
	return Manifest(t).Dir
}

// Manifest is like Dir and returns the image's manifest.
func Manifest(t testing.TB) image.Manifest {
	t.Helper()
	return need(t, plain)
}

// General is like Manifest for the distribution's general kernel, which has 9p.
func General(t testing.TB) image.Manifest {
	t.Helper()
	return need(t, general)
}

func need(t testing.TB, get func() (image.Manifest, error)) image.Manifest {
	t.Helper()
	testreq.Need(t, "apt-get", "go")
	m, err := get()
	require.NoError(t, err, "build the guest image")
	return m
}
