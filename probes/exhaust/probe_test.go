package exhaust

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContained(t *testing.T) {
	out := try(t)
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
	require.True(t, out.Control.OK, out.Control.Summary)
	require.Equal(t, []probes.NotTested{{Case: attack.ExhaustFDs, Reason: "the policy declares no limit of open files"}}, out.NotTested)
	require.Contains(t, out.Witness.Summary, "128 MiB")
	require.Contains(t, out.Witness.Kind, "fake")
}

func TestContainedMachine(t *testing.T) {
	out := try(t, func(sb, _ *world, _ *probes.Env) { sb.machine, sb.countKills = true, false })
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
}

func TestEscapes(t *testing.T) {
	for name, tc := range map[string]struct {
		change change
		cas    string
	}{
		"memory limit not enforced":      {func(sb, _ *world, _ *probes.Env) { sb.memLimit = 0 }, attack.ExhaustMemory},
		"memory limit too high":          {func(sb, _ *world, _ *probes.Env) { sb.memLimit = 200 << 20 }, attack.ExhaustMemory},
		"pid limit not enforced":         {func(sb, _ *world, _ *probes.Env) { sb.pidLimit = 0 }, attack.ExhaustPids},
		"VMM grows with its guest":       {func(sb, _ *world, _ *probes.Env) { sb.machine, sb.taskGrowth = true, 17 }, attack.ExhaustPids},
		"and the guest says it was held": {func(sb, _ *world, _ *probes.Env) { sb.memLimit = 0; sb.lie = saysKilled }, attack.ExhaustMemory},
		"and the guest says nothing": {func(sb, _ *world, _ *probes.Env) {
			sb.memLimit = 0
			sb.exec = func(backends.Execution) (backends.Execution, error) { return backends.Execution{ExitCode: 1}, nil }
		}, attack.ExhaustMemory},
		"and the control failed": {func(sb, ctl *world, _ *probes.Env) { sb.memLimit = 0; ctl.memLimit = 64 << 20 }, attack.ExhaustMemory},
	} {
		t.Run(name, func(t *testing.T) {
			out := try(t, tc.change)
			require.Equal(t, probes.Escaped, out.Verdict, out.Reason)
			require.True(t, byName(t, out, tc.cas).Crossed)
			require.Equal(t, probes.SeverityHigh, out.Severity)
		})
	}
}

// What a guest kernel allows is the payload's word, but a word that admits more
// than was declared is not passed over.
func TestMachineThatAllowsMoreIsWeak(t *testing.T) {
	out := try(t, func(sb, _ *world, _ *probes.Env) {
		sb.machine, sb.countKills, sb.pidLimit = true, false, 0
	})
	require.Equal(t, probes.Weak, out.Verdict, out.Reason)
	require.Equal(t, probes.SeverityMedium, out.Severity)
	require.Contains(t, out.Reason, "declared are 64 tasks")
}

func saysKilled(p attack.ExhaustParams, f *facts) { f.reached, f.end = 100<<20, attack.EndKilled }

func TestWhatIsMissingIsInconclusive(t *testing.T) {
	no := errors.New("no")
	for name, f := range map[string]change{
		"tool missing": func(sb, _ *world, _ *probes.Env) {
			sb.do = func(attack.ExhaustParams) bool { return true }
			sb.exec = func(backends.Execution) (backends.Execution, error) {
				return backends.Execution{ExitCode: wire.ExitNoTool}, nil
			}
		},
		"payload killed with its report": func(sb, _ *world, _ *probes.Env) {
			sb.exec = func(backends.Execution) (backends.Execution, error) {
				return backends.Execution{ExitCode: wire.ExitKilled}, nil
			}
		},
		"call fails": func(sb, _ *world, _ *probes.Env) {
			sb.exec = func(e backends.Execution) (backends.Execution, error) { return e, backends.ErrToolTimeout }
		},
		"no proof": func(sb, _ *world, _ *probes.Env) {
			sb.lie = func(_ attack.ExhaustParams, f *facts) { f.proof = false }
		},
		"nothing tried": func(sb, _ *world, _ *probes.Env) {
			sb.lie = func(_ attack.ExhaustParams, f *facts) { f.tried = false }
		},
		"guest claims a kill, took nothing": func(sb, _ *world, _ *probes.Env) {
			sb.do = func(attack.ExhaustParams) bool { return true }
			sb.lie = saysKilled
		},
		"under 80 percent":      func(sb, _ *world, _ *probes.Env) { sb.memLimit = 96 << 20 },
		"pids under 80 percent": func(sb, _ *world, _ *probes.Env) { sb.pidLimit = 40 },
		"host counts no kill":   func(sb, _ *world, _ *probes.Env) { sb.killsStay() },
		"guest claims more than was metered": func(sb, _ *world, _ *probes.Env) {
			sb.killsStay()
			sb.lie = func(_ attack.ExhaustParams, f *facts) { f.end = attack.EndStopped }
		},
		"payload broke": func(sb, _ *world, _ *probes.Env) {
			sb.killsStay()
			sb.lie = func(_ attack.ExhaustParams, f *facts) { f.end = "nonsense" }
		},
		"control held":          func(_, ctl *world, _ *probes.Env) { ctl.memLimit = 150 << 20 },
		"control's pids held":   func(_, ctl *world, _ *probes.Env) { ctl.pidLimit = 68 },
		"control's meter broke": func(_, ctl *world, _ *probes.Env) { ctl.meterErr = no },
		"no control": func(_, _ *world, env *probes.Env) {
			env.Open = func(context.Context, probes.OpenOptions) (probes.Target, error) { return nil, no }
		},
		"sandbox's meter broke": func(sb, _ *world, _ *probes.Env) { sb.meterErr = no },
		"machine refused far below the limit": func(sb, _ *world, _ *probes.Env) {
			sb.machine, sb.countKills = true, false
			sb.lie = func(p attack.ExhaustParams, f *facts) {
				if p.Case == attack.ExhaustPids {
					f.reached, f.end = 10, attack.EndRefused
				}
			}
		},
		"machine made too few": func(sb, _ *world, _ *probes.Env) {
			sb.machine, sb.countKills = true, false
			sb.lie = func(p attack.ExhaustParams, f *facts) {
				if p.Case == attack.ExhaustPids {
					f.reached, f.end = 10, attack.EndStopped
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := try(t, f)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		})
	}
}

// killsStay ends the payload at the limit without a kill that the host counts.
func (w *world) killsStay() { w.cap, w.memLimit = w.memLimit, 0 }

// Each meter that falls silent makes its sub-case inconclusive, in the control
// and in the attack.
func TestStoppedMeters(t *testing.T) {
	for _, kind := range []string{attack.ExhaustMemory + " meter", attack.ExhaustPids + " meter", attack.ExhaustFDs + " meter"} {
		for _, nth := range []int{0, 1} {
			n := 0
			out := try(t, func(_, _ *world, env *probes.Env) {
				env.Policy.Limits.OpenFiles = 64
				env.Fault = func(k string, stop func()) {
					if k == kind {
						if n == nth {
							stop()
						}
						n++
					}
				}
			})
			require.Equal(t, 2, n, kind)
			if kind == attack.ExhaustFDs+" meter" && nth == 0 {
				continue // an optional sub-case without a control is not tested
			}
			require.Equal(t, probes.Inconclusive, out.Verdict, "%s %d: %s", kind, nth, out.Reason)
		}
	}
}

// A meter that answers before and after, and not once while the payload ran,
// watched nothing.
func TestMeterThatLookedAway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m, err := startMeter(ctx, newWorld(), plan{name: attack.ExhaustMemory})
	require.NoError(t, err)
	m.done.Wait()
	require.False(t, m.end(t.Context()).alive)
}

func TestNoRecoveryIsNotContained(t *testing.T) {
	for _, cas := range []string{attack.ExhaustMemory, attack.ExhaustPids} {
		sandbox := (*world)(nil)
		out := try(t, func(sb, _ *world, _ *probes.Env) {
			sandbox = sb
			sb.dead = func(p attack.ExhaustParams) bool { return p.Case == cas }
		})
		require.Equal(t, probes.Weak, out.Verdict, out.Reason)
		require.Equal(t, probes.SeverityMedium, out.Severity)
		require.Contains(t, out.Reason, "did not answer again")
		require.Equal(t, 1, sandbox.resets)
	}
}

func TestNoDeclaredLimit(t *testing.T) {
	none := func(_, _ *world, env *probes.Env) { env.Policy.Limits = backends.Limits{} }
	out := try(t, none, func(sb, _ *world, _ *probes.Env) { sb.memLimit, sb.pidLimit = 0, 0 })
	require.Equal(t, probes.Weak, out.Verdict, out.Reason)
	require.Equal(t, probes.SeverityHigh, out.Severity)
	require.Contains(t, out.Reason, "no memory limit is declared, and none was found up to 256 MiB")

	out = try(t, none)
	require.Equal(t, probes.Contained, out.Verdict, "an undeclared limit that holds is no finding: %s", out.Reason)

	out = try(t, none, func(sb, _ *world, _ *probes.Env) {
		sb.do = func(attack.ExhaustParams) bool { return true }
		sb.lie = saysKilled
	})
	require.Equal(t, probes.Inconclusive, out.Verdict, "the guest only says that it was held: %s", out.Reason)
}

func TestTooLittleMemory(t *testing.T) {
	sb := newWorld()
	env := &probes.Env{Sandbox: sb, Open: func(context.Context, probes.OpenOptions) (probes.Target, error) { return open(), nil }}
	env.Policy.Limits.MemoryBytes = 1 << 30
	out, err := run(t.Context(), env, host{func() (int64, error) { return 4 << 30, nil }, 100 * time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, probes.Inconclusive, out.Verdict)
	require.Contains(t, out.Reason, "a quarter of the host's available memory (1024 MiB)")
}

// What the payload may take never exceeds what is safe for the host.
func TestPlansAreBounded(t *testing.T) {
	for _, l := range []backends.Limits{{}, {MemoryBytes: 64 << 20, Pids: 16}, {MemoryBytes: 1 << 40, Pids: 1 << 20}} {
		for _, p := range plans(l, false, 1<<30) {
			if p.name == attack.ExhaustMemory {
				require.LessOrEqual(t, p.stop, int64(1<<30))
				continue
			}
			require.LessOrEqual(t, p.stop, max(blindCount, p.limit+overCount))
			require.Less(t, p.limit+p.margin, p.limit+overCount, "the payload has to get past the margin")
		}
	}
}

func TestAvailableMemory(t *testing.T) {
	if _, err := os.Stat("/proc/meminfo"); err != nil {
		t.Skip("no /proc/meminfo on this system")
	}
	n, err := availableMemory()
	require.NoError(t, err)
	require.Greater(t, n, int64(16<<20))
}

func TestMetadata(t *testing.T) {
	p := New()
	require.Equal(t, Name, p.Name)
	require.Contains(t, p.Description, "seed")
	for _, s := range []string{p.Why, p.Limits, p.Harm} {
		require.NotEmpty(t, s)
	}
	require.NotEmpty(t, p.References)
	require.Contains(t, p.Needs, probes.NeedFuse)
}
