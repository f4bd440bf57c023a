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

// ensure runs once per test process; tests share the result.
var ensure = sync.OnceValues(func() (image.Manifest, error) {
	ctx := context.Background()
	agent, sum, err := agentbin.Find(ctx, "")
	if err != nil {
		return image.Manifest{}, err
	}
	cache, err := image.DefaultCacheDir()
	if err != nil {
		return image.Manifest{}, err
	}
	return image.Ensure(ctx, image.Options{CacheDir: cache, Arch: runtime.GOARCH, Kernel: image.Distro, Agent: agent, AgentSHA256: sum})
})

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
	testreq.Need(t, "apt-get", "go")
	m, err := ensure()
	require.NoError(t, err, "build the guest image")
	return m
}
