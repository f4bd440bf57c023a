//go:build linux

package fsescape

import (
	"bytes"
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/canary/canarytest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/fsescape/payload"
)

func TestMain(m *testing.M) {
	canarytest.Main(map[string]wire.ToolFunc{attack.FSEscape: payload.Run})
	goleak.VerifyTestMain(m)
}

var (
	open   = canarytest.Process(false)
	closed = canarytest.Process(true)
	ways   = []string{attack.FSAbsolute, attack.FSTraversal, attack.FSProcRoot, attack.FSMounts, attack.FSWrite, attack.FSEnviron}
)

func outcome(t *testing.T, env *probes.Env) probes.Outcome {
	t.Helper()
	o, err := New().Run(t.Context(), env)
	require.NoError(t, err)
	return o
}

func find(t *testing.T, o probes.Outcome, name string) probes.Case {
	t.Helper()
	i := slices.IndexFunc(o.Cases, func(c probes.Case) bool { return c.Name == name })
	require.NotEqual(t, -1, i, "no sub-case %s", name)
	return o.Cases[i]
}

func TestNamespaceContains(t *testing.T) {
	canarytest.Namespaces(t)
	o := outcome(t, canarytest.Env(t, closed, open))
	require.Equal(t, probes.Contained, o.Verdict, o.Reason)
	require.True(t, o.Control.OK, o.Control.Summary)
	for _, name := range append([]string{caseCanary, attack.FSInherited, attack.FSBlockScan, attack.FSSocket}, ways...) {
		require.Equal(t, probes.Contained, find(t, o, name).Verdict, name)
	}
}

// tame keeps a payload that runs on the host for a test off everything but the
// canaries.
func tame(ex canarytest.Executor) canarytest.Executor {
	return func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		p := inv.Params.(attack.FSEscapeParams)
		p.CanaryOnly = true
		inv.Params = p
		return ex(ctx, inv)
	}
}

func TestNoBoundaryEscapes(t *testing.T) {
	o := outcome(t, canarytest.Env(t, tame(open), open))
	require.Equal(t, probes.Escaped, o.Verdict, o.Reason)
	for _, name := range append([]string{caseCanary, attack.FSBlockScan, attack.FSSocket}, ways...) {
		require.True(t, find(t, o, name).Crossed, name)
	}
	if os.Geteuid() == 0 {
		require.True(t, find(t, o, attack.FSHandle).Crossed)
	}
}

func TestWhatTheGuestSaysDoesNotMatter(t *testing.T) {
	o := outcome(t, canarytest.Env(t, canarytest.Mute(tame(open)), open))
	require.Equal(t, probes.Escaped, o.Verdict, o.Reason)
	require.True(t, find(t, o, caseCanary).Crossed)
	require.Contains(t, find(t, o, caseCanary).Witness, "read")
	require.True(t, find(t, o, attack.FSWrite).Crossed)
}

// smuggle reads the canary's environment secret and prints it encoded, where
// inotify can see nothing.
func TestEncodedSecretIsFound(t *testing.T) {
	smuggle := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		require.NoError(t, err)
		var out []byte
		for _, f := range files {
			b, err := os.ReadFile(f)
			if i := bytes.Index(b, []byte(canary.EnvName+"=")); err == nil && i >= 0 {
				out = append(out, base64.StdEncoding.EncodeToString(b[i:])+"\n"...)
			}
		}
		return backends.Execution{ExitCode: 1, Stderr: backends.NewText(out)}, nil
	})
	o := outcome(t, canarytest.Env(t, smuggle, open))
	require.True(t, find(t, o, attack.FSEnviron).Crossed)
	require.Equal(t, probes.Escaped, o.Verdict)
}

func TestPlantedEnvironmentIsNoticed(t *testing.T) {
	t.Setenv(canary.EnvName, "")
	require.NoError(t, canary.PlantEnv())
	planted := os.Getenv(canary.EnvName)
	require.Len(t, planted, canary.TokenLen)
	require.NoError(t, canary.PlantEnv())
	require.Equal(t, planted, os.Getenv(canary.EnvName))
	inherits := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		return backends.Execution{ExitCode: 1, Stderr: backends.NewText([]byte(os.Getenv(canary.EnvName)))}, nil
	})
	o := outcome(t, canarytest.Env(t, inherits, open))
	require.True(t, find(t, o, attack.FSEnviron).Crossed)
	o = outcome(t, canarytest.Env(t, canarytest.Missing(), inherits))
	require.False(t, find(t, o, attack.FSEnviron).Controlled, "the planted token is no control")
}

func TestNothingIsConcludedFrom(t *testing.T) {
	canarytest.Namespaces(t)
	boast := canarytest.Boaster(append([]string{caseCanary}, ways...)...)
	for name, c := range map[string]struct{ guest, control canarytest.Executor }{
		"a missing tool":                 {canarytest.Missing(), open},
		"a guest that only boasts":       {boast, open},
		"a guest that tries nothing":     {canarytest.Boaster(), open},
		"a control without the tool":     {closed, canarytest.Missing()},
		"a control behind the boundary":  {closed, closed},
		"a control that is only claimed": {closed, boast},
	} {
		t.Run(name, func(t *testing.T) {
			o := outcome(t, canarytest.Env(t, c.guest, c.control))
			require.Equal(t, probes.Inconclusive, o.Verdict, o.Reason)
		})
	}
}

func TestStoppingAnyCanaryIsNoticed(t *testing.T) {
	canarytest.Namespaces(t)
	var kinds []string
	env := canarytest.Env(t, closed, open)
	env.Fault = func(kind string, _ func()) { kinds = append(kinds, kind) }
	outcome(t, env)
	require.Len(t, kinds, 6)
	for i, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			env, n := canarytest.Env(t, closed, open), 0
			env.Fault = func(_ string, stop func()) {
				if n == i {
					stop()
				}
				n++
			}
			o := outcome(t, env)
			require.Equal(t, probes.Inconclusive, o.Verdict, o.Reason)
		})
	}
}

func TestNoSecretIsHandedIn(t *testing.T) {
	var leaked []string
	spy := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		p := inv.Params.(attack.FSEscapeParams)
		secret, err := os.ReadFile(p.Path)
		require.NoError(t, err)
		_, token, _ := strings.Cut(strings.TrimSpace(string(secret)), " ")
		raw, err := wire.Encode(p)
		require.NoError(t, err)
		require.Len(t, token, canary.TokenLen)
		leaked = append(leaked, canary.Leaked(token, raw))
		return backends.Execution{ExitCode: wire.ExitNoTool}, nil
	})
	outcome(t, canarytest.Env(t, spy, spy))
	require.Equal(t, []string{"", ""}, leaked)
}

// imaged is a sandbox that runs from image files.
type imaged struct {
	*canarytest.Sandbox
	file string
}

func (i imaged) ImageFiles() []string { return []string{i.file} }
func (i imaged) IsMachine() bool      { return true }

func TestDiskWriteIsSeenInTheImageAndUndone(t *testing.T) {
	image := filepath.Join(t.TempDir(), "rootfs.img")
	before := bytes.Repeat([]byte{0xa5}, 1<<20)
	require.NoError(t, os.WriteFile(image, before, 0o600))
	// The guest's disk is a file here; a VM finds it as a block device.
	guest := func(path string) canarytest.Executor {
		return func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
			p := inv.Params.(attack.FSEscapeParams)
			p.Devices, p.CanaryOnly, p.VM = []string{path}, true, false
			inv.Params = p
			return open(ctx, inv)
		}
	}
	env := canarytest.Env(t, nil, open)
	env.Sandbox = imaged{&canarytest.Sandbox{Executor: guest(image)}, image}
	o := outcome(t, env)
	require.True(t, find(t, o, attack.FSDiskWrite).Crossed)
	after, err := os.ReadFile(image)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "the overwritten sector was not put back")

	other := filepath.Join(t.TempDir(), "other.img")
	require.NoError(t, os.WriteFile(other, before, 0o600))
	env.Sandbox = imaged{&canarytest.Sandbox{Executor: guest(other)}, image}
	require.False(t, find(t, outcome(t, env), attack.FSDiskWrite).Crossed)
}

func TestLookFindsATokenAcrossChunks(t *testing.T) {
	token := canary.NewToken()
	for _, at := range []int{0, lookChunk - 10, 2*lookChunk - 1, 3*lookChunk - len(token)} {
		b := make([]byte, 3*lookChunk)
		copy(b[at:], token)
		name := filepath.Join(t.TempDir(), "img")
		require.NoError(t, os.WriteFile(name, b, 0o600))
		require.NotEmpty(t, look([]string{name}, token).hit, at)
		require.Empty(t, look([]string{name}, canary.NewToken()).hit)
	}
	require.ErrorIs(t, look([]string{"/nonexistent"}, token).err, os.ErrNotExist)
}

func TestMetadataIsFitToPublish(t *testing.T) {
	p := New()
	for _, text := range []string{p.Description, p.Why, p.Limits} {
		require.Greater(t, len(text), 80)
		require.True(t, strings.HasSuffix(text, "."))
	}
	require.NotEmpty(t, p.Techniques)
	require.NotEmpty(t, p.ATTACK)
	require.NotEmpty(t, p.References)
}
