package framepoison

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func coded(c backends.Code) error {
	return &backends.Error{Code: c, Doing: "test", Err: context.DeadlineExceeded}
}

// Each thing that the host saw of a poisoning changes the answer by itself.
func TestEveryFactCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		mode   string
		change func(*poisoning)
		want   probes.Verdict
	}{
		"dropped":                  {attack.PoisonJunk, func(*poisoning) {}, probes.Contained},
		"refused":                  {attack.PoisonOversized, func(p *poisoning) { p.err = coded(backends.ErrFrameTooLarge) }, probes.Contained},
		"not refused":              {attack.PoisonOversized, func(p *poisoning) { p.err = coded(backends.ErrToolTimeout) }, probes.Escaped},
		"memory grew":              {attack.PoisonOversized, func(p *poisoning) { p.growth = maxGrowth + 1 }, probes.Escaped},
		"meter is dead":            {attack.PoisonJunk, func(p *poisoning) { p.meter = false }, probes.Inconclusive},
		"nothing arrived":          {attack.PoisonJunk, func(p *poisoning) { p.arrived = false }, probes.Inconclusive},
		"nothing proved":           {attack.PoisonJunk, func(p *poisoning) { p.proved = false }, probes.Inconclusive},
		"nothing tried":            {attack.PoisonJunk, func(p *poisoning) { p.attempts = nil }, probes.Inconclusive},
		"next call got no answer":  {attack.PoisonJunk, func(p *poisoning) { p.recovered = false }, probes.Escaped},
		"forged answer":            {attack.PoisonInjection, func(p *poisoning) { p.exec.ExitCode = attack.ForgedExit }, probes.Escaped},
		"slow frame let go":        {attack.PoisonDrip, func(p *poisoning) { p.elapsed = p.timeout + slack/2 }, probes.Contained},
		"slow frame held the host": {attack.PoisonDrip, func(p *poisoning) { p.elapsed = p.timeout + slack + time.Millisecond }, probes.Escaped},
		"a long call is no frame":  {attack.PoisonJunk, func(p *poisoning) { p.elapsed = p.timeout + 2*slack }, probes.Contained},
		"run was ended":            {attack.PoisonJunk, func(p *poisoning) { p.cut, p.recovered, p.err = true, false, context.Canceled }, probes.Inconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			p := poisoning{delivery: delivery{mode: tc.mode, arrived: true, proved: true, attempts: []probes.Attempt{{Case: tc.mode}}},
				timeout: time.Second, meter: true, recovered: true}
			tc.change(&p)
			c := probes.Case{Name: tc.mode, Required: true, Controlled: true}
			p.judge(&c)
			o := probes.Outcome{Cases: []probes.Case{c}}
			o.Judge(probes.SeverityHigh)
			require.Equal(t, tc.want, o.Verdict, o.Reason)
		})
	}
}

// The meter of the harness notices what it is there for.
func TestMeterNotices(t *testing.T) {
	m := startMeter()
	b := make([]byte, maxGrowth+(8<<20))
	growth, alive := m.end()
	runtime.KeepAlive(b)
	require.True(t, alive)
	require.Greater(t, growth, int64(maxGrowth))
}

// A naive decoder that does not break on the bytes is no control.
func TestNaiveDecoderIsAsked(t *testing.T) {
	for _, mode := range attack.PoisonModes() {
		require.True(t, naiveBreaks(mode, attack.PoisonBytes(mode, "nonce", "id"), "id"), mode)
		require.False(t, naiveBreaks(mode, []byte{0, 0, 0, 2, '{', '}'}, "id"), mode)
	}
}

// An agent that does not answer any more after bytes of the host's is found.
func TestAgentThatDiesOfInjectedBytes(t *testing.T) {
	sb := start(t, table(), guest.Options{Grace: 50 * time.Millisecond})
	n := 0
	sb.injected = func() {
		if n++; n == 2 { // the first is the well-formed call of the proof
			sb.stop()
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cases := inject(ctx, &probes.Env{Sandbox: sb}, sb)
	last := cases[len(cases)-1]
	require.True(t, last.Crossed, "%+v", last)
	require.Equal(t, probes.SeverityMedium, last.Severity)
}

// Without the proof that well-formed bytes get through by the same way, nothing
// that is injected counts.
func TestInjectionNeedsItsProof(t *testing.T) {
	sb := start(t, table(), guest.Options{})
	out := probes.Outcome{Cases: inject(t.Context(), &probes.Env{Sandbox: sb, Fault: func(_ string, stop func()) { stop() }}, sb)}
	out.Judge(probes.SeverityHigh)
	require.Equal(t, probes.Inconclusive, out.Verdict, out.Reason)
	require.NotContains(t, summary(&out, 0), "every malformed byte")
	out = probes.Outcome{Cases: inject(t.Context(), &probes.Env{Sandbox: sb}, sb)}
	out.Judge(probes.SeverityHigh)
	require.Equal(t, probes.Contained, out.Verdict, out.Reason)
}
