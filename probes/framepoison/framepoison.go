// Package framepoison is P-A8: malformed bytes on the message channel, from the
// guest to the host and from the host to the guest.
package framepoison

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Name is the probe's id.
const Name = "P-A8-vsock-poison"

const (
	callDeadline = 5 * time.Second
	// The whole-frame deadline that slow frames are tested against is this many
	// round trips, within bounds: waiting for the default of 30 s would only take
	// longer, and a frame of the sandbox's own has to fit in.
	frameRoundtrips = 1000
	minFrameTimeout = 20 * time.Millisecond
	maxFrameTimeout = time.Second
	// slack is what the host may take beyond the frame deadline to let go.
	slack = 1500 * time.Millisecond
	// resyncs is how often a new session is tried while the payload may still
	// be writing.
	resyncs = 4
)

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name: Name, Class: probes.ClassChannelPoison, Expectation: probes.ShouldFail,
		Description: "A tool gets hold of the raw message channel and writes oversized, truncated, dripped, empty, duplicate, unsolicited, deeply nested and invalid frames, " +
			"and JSON whose keys shadow one another; the host writes the same to the agent. Both have to refuse them, stay within their memory, and answer the next call.",
		Why: "A tap below the host's decoder shows that the malformed bytes arrived, all of them or up to the one that a sound host refuses, and a naive decoder breaks on exactly those bytes. " +
			"That the host refused them in time, grew by less than 64 MiB, believed no forged answer and got a right answer to its next call was seen on the host.",
		Limits:     "It covers the channel of this harness and the agent's decoder. The device model below the channel (virtio rings, the VMM's vsock multiplexer) is attacked elsewhere or not at all; a decoder bug that these forms do not reach is for the fuzz targets.",
		Severity:   probes.SeverityHigh,
		Harm:       "host denial of service",
		Techniques: []string{"O02", "O03", "O04", "O11"},
		Needs:      []probes.Need{probes.NeedChannel},
		Budget:     90 * time.Second,
		Run:        run,
	}
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	out := probes.Outcome{
		Witness: probes.Witness{Kind: "tap below the decoder, heap meter, next call"},
		Control: probes.Control{Target: "open agent and a naive decoder"},
	}
	sb, ok := env.Sandbox.(channel)
	if !ok {
		return out, errors.New("the sandbox gives no raw access to its channel")
	}
	var timeout time.Duration // 0 when slow frames cannot be tested in reasonable time
	if timer, ok := env.Sandbox.(backends.FrameTimer); ok {
		if timeout = frameTimeout(ctx, sb); timeout > 0 {
			timer.SetFrameTimeout(timeout)
			defer timer.SetFrameTimeout(0)
			if err := sb.Resync(ctx); err != nil {
				return out, fmt.Errorf("open a session with a short frame deadline: %w", err)
			}
		}
	}
	broke := control(ctx, env, &out)

	var growth int64
	for i, mode := range attack.PoisonModes() {
		c := probes.Case{Name: mode, Required: true, Controlled: broke[mode]}
		if isSlow(mode) && timeout == 0 {
			c.NotTested = "the sandbox's frame deadline cannot be shortened"
			c.Required = false
		} else {
			p := poison(ctx, env, sb, mode, timeout)
			p.judge(&c)
			growth = max(growth, p.growth)
			out.Attempts = append(out.Attempts, p.attempts...)
		}
		out.Cases = append(out.Cases, c)
		if env.Progress != nil {
			env.Progress(i+1, len(attack.PoisonModes())+1)
		}
		if c.Crossed || ctx.Err() != nil {
			break // the channel or the sandbox may be gone
		}
	}
	if env.Sandbox.State() == backends.StateReady && ctx.Err() == nil {
		out.Cases = append(out.Cases, inject(ctx, env, sb)...)
	}
	out.Judge(probes.SeverityHigh)
	out.Witness.Summary = summary(&out, growth)
	out.Evidence = map[string]any{"host_heap_allocated_bytes": growth, "host_heap_allocated_limit_bytes": int64(maxGrowth)}
	return out, ctx.Err()
}

func summary(out *probes.Outcome, growth int64) string {
	for _, c := range out.Cases {
		if c.Crossed {
			return c.Name + ": " + c.Witness
		}
	}
	for _, c := range out.Cases {
		if c.Verdict != probes.Contained {
			return c.Name + ": " + string(c.Verdict)
		}
	}
	return fmt.Sprintf("every malformed byte was seen on the host and refused; it allocated %.1f MiB for them; next calls answered", float64(growth)/(1<<20))
}

// frameTimeout derives the deadline for slow frames from the quickest of a few
// calls; 0 means that none succeeded.
func frameTimeout(ctx context.Context, ch channel) time.Duration {
	best := time.Duration(0)
	for range 5 {
		e, err := ch.Execute(ctx, backends.Invocation{Tool: "noop", Deadline: callDeadline})
		if err == nil && (best == 0 || e.Elapsed < best) {
			best = e.Elapsed
		}
	}
	if best == 0 {
		return 0
	}
	return min(max(frameRoundtrips*best, minFrameTimeout), maxFrameTimeout)
}

func isSlow(mode string) bool {
	return mode == attack.PoisonTruncated || mode == attack.PoisonDrip
}

// control runs every mode against the open agent and gives what the tap caught
// to the naive decoder.
func control(ctx context.Context, env *probes.Env, out *probes.Outcome) map[string]bool {
	broke := map[string]bool{}
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		out.Control.Summary = "no open target: " + err.Error()
		return broke
	}
	defer func() { _ = open.Close() }()
	ch, ok := open.(channel)
	if !ok {
		out.Control.Summary = "the open target gives no raw access to its channel"
		return broke
	}
	for _, mode := range attack.PoisonModes() {
		hold := time.Duration(0)
		if isSlow(mode) {
			hold = minFrameTimeout
		}
		d := send(ctx, env, ch, mode, hold, true)
		broke[mode] = d.arrived && naiveBreaks(mode, d.caught, d.id)
		if !recovers(ctx, ch, d.err != nil) {
			break
		}
	}
	n := 0
	for _, b := range broke {
		if b {
			n++
		}
	}
	out.Control.OK = n == len(attack.PoisonModes())
	out.Control.Summary = fmt.Sprintf("a naive decoder broke on %d of %d kinds of poison", n, len(attack.PoisonModes()))
	return broke
}

// delivery is one mode's bytes on their way to the host.
type delivery struct {
	mode, id string
	arrived  bool   // it went through the tap, in one piece, up to where a host refuses
	caught   []byte // from the first poisoned byte on
	exec     backends.Execution
	err      error
	elapsed  time.Duration
	attempts []probes.Attempt
	proved   bool
}

// send has the payload write a mode's bytes and waits for the call to end, or,
// where the caller does not care for how the host lets go, for the bytes.
func send(ctx context.Context, env *probes.Env, ch channel, mode string, hold time.Duration, bytesOnly bool) delivery {
	nonce := wire.NewNonceString()
	d := delivery{mode: mode, id: "poison-" + wire.NewNonceString()}
	want := attack.PoisonBytes(mode, nonce, d.id)
	t := newTap()
	stop := ch.Tap(t.add)
	defer stop()
	env.Sabotage("channel tap", t.stop)

	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(answered)
		d.exec, d.err = ch.Execute(callCtx, backends.Invocation{ID: d.id, Tool: attack.ChannelPoison, Deadline: callDeadline,
			Params: attack.ChannelPoisonParams{Nonce: nonce, Mode: mode, CommandID: d.id, HoldMS: int(hold.Milliseconds())}})
		d.elapsed = time.Since(began)
	}()
	shown := want[:attack.PoisonShown(mode, want)]
	d.arrived = t.saw(shown, answered, callDeadline)
	if bytesOnly && isSlow(mode) {
		cancel()
	}
	<-answered
	if b := t.bytes(); d.arrived {
		d.caught = b[bytes.Index(b, shown):]
	}
	if d.err == nil {
		if r, err := wire.ParsePayloadReport(d.exec.Stdout.Bytes(), attack.ChannelPoison, nonce); err == nil {
			d.attempts, d.proved = r.Attempts, r.Proved(mode)
		}
	}
	if d.arrived && len(d.attempts) == 0 {
		// The session died with the report in it. Only a payload that ran can
		// have written this execution's nonce.
		d.proved = true
		d.attempts = []probes.Attempt{{Case: mode, Op: "write", Target: "message channel", Result: wire.ResultOK,
			Detail: fmt.Sprintf("%d of %d bytes seen by the host's tap before it refused", min(len(d.caught), len(want)), len(want))}}
	}
	return d
}

// poisoning is a delivery to the host and what it did there.
type poisoning struct {
	delivery
	timeout   time.Duration // the frame deadline in force
	growth    int64
	meter     bool
	recovered bool
	// cut: the probe was ended meanwhile, so what failed tells of that.
	cut bool
}

func poison(ctx context.Context, env *probes.Env, ch channel, mode string, timeout time.Duration) poisoning {
	m := startMeter()
	env.Sabotage("heap meter", m.stop)
	hold := time.Duration(0)
	if isSlow(mode) {
		hold = timeout + timeout/2
	}
	p := poisoning{timeout: timeout, delivery: send(ctx, env, ch, mode, hold, false)}
	p.recovered = recovers(ctx, ch, p.err != nil)
	p.growth, p.meter = m.end()
	p.cut = ctx.Err() != nil
	return p
}

func (p *poisoning) judge(c *probes.Case) {
	c.Attempted = len(p.attempts) > 0
	c.Proved = p.proved
	c.WitnessAlive = p.arrived && p.meter
	forged := p.err == nil && p.exec.ExitCode == attack.ForgedExit
	limit := callDeadline
	if isSlow(p.mode) {
		limit = p.timeout + slack
	}
	switch {
	case forged:
		c.Crossed, c.Witness = true, "the host believed a forged answer"
	case p.growth > maxGrowth:
		c.Crossed, c.Witness = true, fmt.Sprintf("the host allocated %d MiB for them, more than %d", p.growth>>20, maxGrowth>>20)
	case p.cut:
		c.Doubt = "the probe was ended before the host could let go"
	case p.arrived && p.err != nil && !refused(p.err):
		c.Crossed, c.Witness = true, "the host did not refuse the bytes: "+oneLine(p.err)
	case p.arrived && isSlow(p.mode) && p.elapsed > limit:
		c.Crossed, c.Witness = true, fmt.Sprintf("an unfinished frame held the host for %s, its deadline is %s", p.elapsed.Round(time.Millisecond), p.timeout)
	case p.arrived && !p.recovered:
		c.Crossed, c.Witness = true, "the next call got no answer"
	case p.arrived && p.err != nil:
		c.Witness = "refused with " + string(backends.CodeOf(p.err)) + ", next call answered"
	case p.arrived:
		c.Witness = "dropped, the call itself and the next one answered"
	default:
		c.Doubt = "the malformed bytes did not reach the host's tap"
		if p.err != nil {
			c.Doubt += ": " + oneLine(p.err)
		}
	}
}

// refused reports whether err is one of the codes by which a decoder refuses.
func refused(err error) bool {
	switch backends.CodeOf(err) {
	case backends.ErrFrameTooLarge, backends.ErrFrameMalformed, backends.ErrPartialFrameTimeout, backends.ErrProtocol,
		backends.ErrClosed, backends.ErrDuplicateRequest:
		return true
	}
	return false
}

// recovers makes one call, after opening a new session where the last one is
// over. The payload may still be writing, so a session can need several tries.
func recovers(ctx context.Context, ch channel, over bool) bool {
	for range resyncs {
		if over && ch.Resync(ctx) != nil && ctx.Err() != nil {
			return false
		}
		if noop(ctx, ch) {
			return true
		}
		over = true
	}
	return false
}

func noop(ctx context.Context, ch channel) bool {
	ctx, cancel := context.WithTimeout(ctx, callDeadline)
	defer cancel()
	e, err := ch.Execute(ctx, backends.Invocation{Tool: "noop", Deadline: callDeadline / 2})
	return err == nil && e.ExitCode == 0
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
