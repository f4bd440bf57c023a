package timebomb

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs a test on guest processes and on real host processes.
func both(t *testing.T, f func(t *testing.T, inside bool)) {
	t.Run("machine", func(t *testing.T) { f(t, false) })
	t.Run("host processes", func(t *testing.T) {
		testreq.Need(t, "linux", "sleep")
		f(t, true)
	})
}

func TestContained(t *testing.T) {
	both(t, func(t *testing.T, inside bool) {
		out := try(t, inside)
		require.Equal(t, probes.Contained, out.Verdict, out.Reason)
		require.Len(t, out.Cases, len(attack.BombModes()))
		require.True(t, out.Control.OK, out.Control.Summary)
		require.NotEmpty(t, out.Witness.Summary)
	})
}

func timeout(d time.Duration) error { return &backends.ToolTimeoutError{Deadline: d} }

func TestEscapes(t *testing.T) {
	both(t, func(t *testing.T, inside bool) {
		for name, f := range map[string]change{
			"survivors are alive": func(sb, _ *world, _ *probes.Env) { sb.keep = true },
			"and the control failed": func(sb, ctl *world, _ *probes.Env) {
				sb.keep, ctl.keep = true, false
			},
			"and the guest shows none of them": func(sb, _ *world, _ *probes.Env) {
				sb.keep = true
				sb.beats = func(int64) int64 { return 0 }
			},
			"one kind of bomb holds the host": func(sb, _ *world, _ *probes.Env) {
				sb.ends = func(mode string, d time.Duration) (time.Duration, error) {
					if mode == attack.BombHoldStdout {
						d += 600 * time.Millisecond
					}
					return d, timeout(d)
				}
			},
			"no deadline at all": func(sb, _ *world, _ *probes.Env) {
				sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return d + 600*time.Millisecond, nil }
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				out := try(t, inside, f)
				require.Equal(t, probes.Escaped, out.Verdict, out.Reason)
				require.Equal(t, probes.SeverityHigh, out.Severity)
			})
		}
	})
}

// Emulation is slow, and that is no escape.
func TestEmulationMayBeLater(t *testing.T) {
	out := try(t, false, func(sb, _ *world, _ *probes.Env) {
		sb.accel = "tcg"
		sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return d + 600*time.Millisecond, timeout(d) }
	})
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
}

func TestWhatIsMissingIsInconclusive(t *testing.T) {
	no := errors.New("no")
	for name, f := range map[string]change{
		"timeout before the deadline": func(sb, _ *world, _ *probes.Env) {
			sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return d / 2, timeout(d) }
		},
		"instant timeout, nothing started": func(sb, _ *world, _ *probes.Env) {
			sb.dud = true
			sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return 0, timeout(d) }
		},
		"timeout in time, nothing started": func(sb, _ *world, _ *probes.Env) { sb.dud = true },
		"another error": func(sb, _ *world, _ *probes.Env) {
			sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return d, backends.ErrClosed }
		},
		"bomb gave up around its deadline": func(sb, _ *world, _ *probes.Env) {
			sb.ends = func(_ string, d time.Duration) (time.Duration, error) { return d + 2*time.Millisecond, nil }
		},
		"bomb gave up": func(sb, _ *world, _ *probes.Env) {
			sb.ends = func(string, time.Duration) (time.Duration, error) { return 0, nil }
		},
		"tool missing": func(sb, _ *world, _ *probes.Env) {
			missing := func(attack.TimeBombParams, backends.Execution) (backends.Execution, error) {
				return backends.Execution{ExitCode: wire.ExitNoTool}, nil
			}
			sb.exec, sb.dud = missing, true
			sb.ends = func(string, time.Duration) (time.Duration, error) { return 0, nil }
		},
		"no proof": func(sb, _ *world, _ *probes.Env) {
			sb.exec = func(p attack.TimeBombParams, e backends.Execution) (backends.Execution, error) {
				switch p.Do {
				case attack.BombProve:
					return backends.Execution{}, nil
				case attack.BombExplode:
					return e, timeout(0)
				}
				return e, nil
			}
		},
		"control without survivor": func(_, ctl *world, _ *probes.Env) { ctl.keep = false },
		"control is dud":           func(_, ctl *world, _ *probes.Env) { ctl.dud = true },
		"no control": func(_, _ *world, env *probes.Env) {
			env.Open = func(context.Context, probes.OpenOptions) (probes.Target, error) { return nil, no }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, inside bool) {
				out := try(t, inside, f)
				require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
			})
		})
	}
}

func TestGuestDoubts(t *testing.T) {
	for name, f := range map[string]change{
		"control's processor time stands still": func(_, ctl *world, _ *probes.Env) {
			ctl.cpu = func(time.Duration) time.Duration { return 0 }
		},
		"processor time stands still": func(sb, _ *world, _ *probes.Env) { sb.cpu = func(time.Duration) time.Duration { return 0 } },
		"guest is busy before, and busier with the bombs": func(sb, _ *world, _ *probes.Env) {
			sb.cpu = func(honest time.Duration) time.Duration { return honest + time.Since(sb.start) }
		},
		"guest claims beats that cost nothing": func(sb, _ *world, _ *probes.Env) {
			n := int64(0)
			sb.beats = func(int64) int64 { n++; return n }
		},
		"beats cannot be read": func(sb, _ *world, _ *probes.Env) {
			sb.exec = func(p attack.TimeBombParams, e backends.Execution) (backends.Execution, error) {
				switch p.Do {
				case attack.BombRead:
					return e, backends.ErrClosed
				case attack.BombExplode:
					return e, timeout(0)
				}
				return e, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := try(t, false, f)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		})
	}
}

// Each witness that falls silent makes the probe inconclusive, in the control
// and in the attack.
func TestStoppedWitnesses(t *testing.T) {
	both(t, func(t *testing.T, inside bool) {
		for nth := range 2 {
			n := 0
			out := try(t, inside, func(_, _ *world, env *probes.Env) {
				env.Fault = func(_ string, stop func()) {
					if n == nth {
						stop()
					}
					n++
				}
			})
			require.Equal(t, 2, n)
			require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
		}
	})
}

// What a control leaves behind is noticed and ended.
func TestControlThatStays(t *testing.T) {
	testreq.Need(t, "linux", "sleep")
	var ctl *world
	out := try(t, true, func(_, open *world, _ *probes.Env) { ctl = open; open.stays = true })
	require.Equal(t, probes.Inconclusive, out.Verdict)
	require.Contains(t, out.Reason, "outlived their target")
	for _, s := range ctl.lives {
		require.Error(t, s.cmd.Wait(), "it was killed")
		s.died = time.Now()
	}
}

// A run that is ended while the bombs tick blames nobody for what is alive then; a
// survivor of a deadline that had struck stays one.
func TestAnInterruptedRunBlamesNobody(t *testing.T) {
	for _, tc := range []struct {
		err         error
		interrupted bool
		crossed     bool
	}{
		{context.Canceled, true, false},
		{timeout(time.Second), true, true},
		{context.Canceled, false, true}, // the sandbox's word, not ours
		{timeout(time.Second), false, true},
	} {
		v := salvo{pace: pace{deadline: time.Second, late: time.Second}, inside: true, watchAlive: true, interrupted: tc.interrupted}
		c := probes.Case{Required: true, Proved: true, Controlled: true}
		v.judge(&shot{err: tc.err, elapsed: time.Second, seen: true, alive: []int{7}}, &c)
		require.Equal(t, tc.crossed, c.Crossed, "%+v", tc)
		require.True(t, c.Crossed || c.Doubt != "", "%+v", tc)
	}
	sb, ctl := newWorld(t, false), newWorld(t, false)
	sb.keep, ctl.keep = true, true
	ctx, cancel := context.WithCancel(t.Context())
	sb.ends = func(string, time.Duration) (time.Duration, error) { cancel(); return 0, context.Canceled }
	out, err := run(ctx, &probes.Env{Sandbox: sb, Log: slog.New(slog.DiscardHandler), Open: func(context.Context, probes.OpenOptions) (probes.Target, error) { return ctl, nil }})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
}

// A host that stood still itself blames nobody for a late call; one that did
// not, or a call that is later than that explains, does.
func TestABusyHostBlamesNobody(t *testing.T) {
	for _, tc := range []struct {
		elapsed, stalled time.Duration
		crossed          bool
	}{
		{700 * time.Millisecond, 0, true},
		{700 * time.Millisecond, 100 * time.Millisecond, true},
		{700 * time.Millisecond, 300 * time.Millisecond, false},
		{5 * time.Second, 300 * time.Millisecond, true},
	} {
		v := salvo{pace: pace{deadline: 100 * time.Millisecond, late: 500 * time.Millisecond}, stalled: tc.stalled}
		var c probes.Case
		v.judgeCall(&shot{elapsed: tc.elapsed, err: timeout(v.deadline)}, &c)
		require.Equal(t, tc.crossed, c.Crossed, "%+v", tc)
		require.Equal(t, !tc.crossed, c.Doubt != "", "%+v", tc)
	}
}

func TestPace(t *testing.T) {
	require.Equal(t, 15*time.Millisecond, paceFor(0).deadline)
	require.Equal(t, 160*time.Millisecond, paceFor(20*time.Millisecond).deadline)
	require.Equal(t, 1500*time.Millisecond, paceFor(time.Minute).deadline)
}

func TestWidth(t *testing.T) {
	for pids, want := range map[int]int{0: 3, 16: 1, 64: 1, 128: 2, 4096: 3} {
		require.Equal(t, want, widthFor(pids), "%d", pids)
	}
}

func TestMetadata(t *testing.T) {
	p := New()
	require.Equal(t, Name, p.Name)
	require.Contains(t, p.Description, "seed")
	for _, s := range []string{p.Why, p.Limits, p.Harm} {
		require.NotEmpty(t, s)
	}
	require.NotEmpty(t, p.References)
}
