//go:build linux

package procescape

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary/canarytest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/procescape/payload"
)

func TestMain(m *testing.M) {
	canarytest.Main(map[string]wire.ToolFunc{attack.ProcEscape: payload.Run})
	goleak.VerifyTestMain(m)
}

var (
	open   = canarytest.Process(false)
	closed = canarytest.Process(true)
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
	require.Equal(t, true, o.Evidence["host_init_unchanged"])
	for _, name := range []string{attack.ProcVisible, attack.ProcSignal, attack.ProcPidfd, attack.ProcHostPort} {
		require.Equal(t, probes.Contained, find(t, o, name).Verdict, name)
	}
	if os.Geteuid() == 0 {
		for _, name := range []string{attack.ProcPtrace, attack.ProcVMRead, attack.ProcGetfd, attack.ProcSetns, attack.ProcShm} {
			require.Equal(t, probes.Contained, find(t, o, name).Verdict, "%s: %+v", name, find(t, o, name))
		}
	}
}

func TestNoBoundaryEscapes(t *testing.T) {
	o := outcome(t, canarytest.Env(t, open, open))
	require.Equal(t, probes.Escaped, o.Verdict, o.Reason)
	for _, name := range []string{attack.ProcVisible, attack.ProcSignal, attack.ProcPidfd, attack.ProcHostPort, attack.ProcShm} {
		require.True(t, find(t, o, name).Crossed, name)
	}
	if os.Geteuid() == 0 {
		for _, name := range []string{attack.ProcPtrace, attack.ProcVMRead, attack.ProcGetfd, attack.ProcSetns} {
			require.True(t, find(t, o, name).Crossed, name)
		}
	}
}

func TestWhatTheGuestSaysDoesNotMatter(t *testing.T) {
	o := outcome(t, canarytest.Env(t, canarytest.Mute(open), open))
	require.Equal(t, probes.Escaped, o.Verdict, o.Reason)
	for _, name := range []string{attack.ProcSignal, attack.ProcPidfd, attack.ProcHostPort} {
		require.True(t, find(t, o, name).Crossed, name)
	}
}

// machine is a sandbox with a kernel of its own.
type machine struct{ *canarytest.Sandbox }

func (machine) IsMachine() bool { return true }

// A request that is carried out late is seen, although the guest says that it
// sent none.
func TestALateSignalOfAHostPortIsSeen(t *testing.T) {
	var late sync.WaitGroup
	defer late.Wait()
	sly := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		e, err := canarytest.Boaster()(ctx, inv)
		pid := inv.Params.(attack.ProcEscapeParams).Canaries[attack.ProcHostPort].PID
		late.Go(func() {
			time.Sleep(quietTime / 4)
			_ = syscall.Kill(pid, syscall.SIGTERM)
		})
		return e, err
	})
	env := canarytest.Env(t, nil, open)
	env.Sandbox = machine{&canarytest.Sandbox{Executor: sly}}
	o := outcome(t, env)
	require.True(t, find(t, o, attack.ProcHostPort).Crossed)
}

func TestPushedBackLineIsReadFromASharedTerminal(t *testing.T) {
	env := canarytest.Env(t, nil, open)
	shared := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		p := inv.Params.(attack.ProcEscapeParams)
		p.Canaries = nil
		p.TTY = env.Sandbox.(backends.SharedTerminal).(terminal).path
		inv.Params = p
		return open(ctx, inv)
	})
	tty := newTerminal(t)
	env.Sandbox = terminal{&canarytest.Sandbox{Executor: shared}, tty}
	o := outcome(t, env)
	c := find(t, o, attack.ProcTTY)
	if !c.Controlled {
		t.Skipf("the kernel refuses TIOCSTI; fix: sysctl -w dev.tty.legacy_tiocsti=1")
	}
	require.True(t, c.Crossed)
}

func TestNothingIsConcludedFrom(t *testing.T) {
	canarytest.Namespaces(t)
	boast := canarytest.Boaster(append(attack.ProcOnCanary(), attack.ProcSetns, attack.ProcShm, attack.ProcTTY)...)
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
	require.GreaterOrEqual(t, len(kinds), 12)
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

func TestOnlyTheCanaryIsSignalled(t *testing.T) {
	bystander := newBystander(t)
	misled := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		p := inv.Params.(attack.ProcEscapeParams)
		for cas, c := range p.Canaries {
			c.PID, c.ID = bystander.Pid, "bsm-canary-of-nobody"
			p.Canaries[cas] = c
		}
		p.Ports = nil
		inv.Params = p
		return open(ctx, inv)
	})
	o := outcome(t, canarytest.Env(t, misled, open))
	require.NoError(t, bystander.Signal(syscall.Signal(0)))
	require.False(t, find(t, o, attack.ProcSignal).Crossed)
	for _, a := range o.Attempts {
		if a.Case == attack.ProcSignal {
			require.Equal(t, wire.ResultAbsent, a.Result)
		}
	}
}

func TestNoSecretIsHandedIn(t *testing.T) {
	spy := canarytest.Executor(func(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
		p := inv.Params.(attack.ProcEscapeParams)
		raw, err := wire.Encode(p)
		require.NoError(t, err)
		for _, c := range p.Canaries {
			env, err := os.ReadFile("/proc/" + itoa(c.PID) + "/environ")
			require.NoError(t, err)
			_, secret, ok := strings.Cut(string(env), "=")
			require.True(t, ok)
			require.NotContains(t, string(raw), secret[:32])
			args, err := os.ReadFile("/proc/" + itoa(c.PID) + "/cmdline")
			require.NoError(t, err)
			words := strings.Split(strings.TrimRight(string(args), "\x00"), "\x00")
			require.NotContains(t, string(raw), words[len(words)-1])
		}
		return backends.Execution{ExitCode: wire.ExitNoTool}, nil
	})
	outcome(t, canarytest.Env(t, spy, spy))
}

// filtered says which processes of the host it consists of.
type filtered struct {
	canarytest.Executor
	pid int
}

func (f filtered) HostPIDs(context.Context) ([]int, error) { return []int{f.pid}, nil }
func (f filtered) InsideIsHost() bool                      { return true }

func TestAbsentFilterIsWeak(t *testing.T) {
	mode, err := filterMode(t.Context(), filtered{pid: newBystander(t).Pid})
	require.NoError(t, err)
	if mode != "0" {
		t.Skip("this test itself runs under a system-call filter; fix: run it without one")
	}
	report := &wire.PayloadReport{Facts: map[string]string{attack.ProcFilter: "2"}}
	s := sighting{filter: mode}
	s.Report = report
	o := probes.Outcome{Cases: []probes.Case{filter(sighting{filter: "0"}, s)}}
	o.Judge(probes.SeverityCritical)
	require.Equal(t, probes.Weak, o.Verdict, "the guest's claim of a filter does not count")
	s.filter = "2"
	o.Cases = []probes.Case{filter(sighting{filter: "0"}, s)}
	o.Judge(probes.SeverityCritical)
	require.Equal(t, probes.Contained, o.Verdict)
	_, err = filterMode(t.Context(), canarytest.Missing())
	require.ErrorIs(t, err, errOwnKernel)
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
