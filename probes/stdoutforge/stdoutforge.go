// Package stdoutforge is P-A7: a tool prints what a host might take for
// something else than data.
package stdoutforge

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Name is the probe's id.
const Name = "P-A7-stdout-injection"

const deadline = 10 * time.Second

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name: Name, Class: probes.ClassStdoutInjection, Expectation: probes.ShouldFail,
		Description: "A tool prints forged result frames and result lines, GitHub workflow commands, terminal escapes, bidi controls, XML and Markdown breakers. " +
			"Every byte has to arrive as data, and none may be promoted to a result, a command or markup in any kind of output.",
		Why: "The bytes are compared on the host with what was to be printed, and every rendering of them is given to a naive consumer of its kind. " +
			"The same consumers do fall for the same bytes when these are passed on raw, so their silence shows that the rendering defused them.",
		Limits:   "It judges the message channel and the renderings of this harness (and of a sandbox that brings its own). What another program does with a log that it copied from elsewhere is not seen.",
		Severity: probes.SeverityHigh, Harm: "integrity",
		Techniques: []string{"O01", "O06", "O09", "O10"},
		Budget:     30 * time.Second,
		Run:        run,
	}
}

// consumers are the witness: naive readers of each kind of output.
type consumers struct{ stopped atomic.Bool }

func (c *consumers) stop() { c.stopped.Store(true) }

func (c *consumers) fall(t trap, raw []byte, token string) bool {
	return !c.stopped.Load() && t.springs(raw, token)
}

// alive gives the consumer of t a forgery of the host's own, which it has to
// fall for.
func (c *consumers) alive(t trap) bool {
	token := wire.NewNonceString()
	return c.fall(t, t.content(token, "self-check"), token)
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	out := probes.Outcome{
		Witness: probes.Witness{Kind: "naive consumers"},
		Control: probes.Control{Target: "open agent, its output passed on raw"},
	}
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		out.Control.Summary = "no open target: " + err.Error()
	} else {
		defer func() { _ = open.Close() }()
	}
	witness := &consumers{}
	env.Sabotage("naive consumers", witness.stop)

	fell := 0
	for i, t := range traps() {
		c := probes.Case{Name: t.name, Required: true}
		if open != nil {
			if p := forge(ctx, open, t); p.err == nil && witness.fall(t, p.got, p.token) {
				c.Controlled = true
				fell++
			}
		}
		attempts := judge(&c, t, forge(ctx, env.Sandbox, t), witness, rendering(env.Sandbox))
		out.Attempts = append(out.Attempts, attempts...)
		c.WitnessAlive = witness.alive(t)
		out.Cases = append(out.Cases, c)
		if env.Progress != nil {
			env.Progress(i+1, len(traps()))
		}
		if ctx.Err() != nil {
			return out, ctx.Err()
		}
	}
	out.Control.OK = fell == len(out.Cases)
	if open != nil {
		out.Control.Summary = fmt.Sprintf("%d of %d naive consumers fell for the raw output", fell, len(out.Cases))
	}
	out.Judge(probes.SeverityHigh)
	out.Witness.Summary = summary(out.Cases)
	return out, nil
}

func summary(cases []probes.Case) string {
	for _, c := range cases {
		if c.Crossed {
			return c.Witness
		}
	}
	sound := 0
	for _, c := range cases {
		if c.Verdict == probes.Contained {
			sound++
		}
	}
	return fmt.Sprintf("%d of %d hostile outputs arrived verbatim and stayed data", sound, len(cases))
}

// printed is what came of printing one trap.
type printed struct {
	token, id string
	want, got []byte
	exec      backends.Execution
	report    *wire.PayloadReport
	err       error
}

func forge(ctx context.Context, in backends.Executor, t trap) printed {
	p := printed{token: wire.NewNonceString(), id: "stdout-forge-" + wire.NewNonceString()}
	p.want = t.content(p.token, p.id)
	nonce := wire.NewNonceString()
	p.exec, p.err = in.Execute(ctx, backends.Invocation{
		ID: p.id, Tool: attack.StdoutForge, Deadline: deadline,
		Params: attack.StdoutForgeParams{Nonce: nonce, Case: t.name, Content: p.want},
	})
	if p.err != nil {
		return p
	}
	p.got = p.exec.Stdout.Bytes()
	p.report, p.err = wire.ParsePayloadReport(p.exec.Stderr.Bytes(), attack.StdoutForge, nonce)
	return p
}

// judge decides one sub-case. A forgery that the host believed is a crossing
// even when the payload's own report got lost with it.
func judge(c *probes.Case, t trap, p printed, w *consumers, render func(string, backends.Text) string) []probes.Attempt {
	if believed(p) {
		c.Crossed = true
		c.Witness = "the host took the forged result for the tool's own"
		return nil
	}
	if p.err != nil {
		c.Doubt = "the payload did not run: " + oneLine(p.err)
		return nil
	}
	c.Attempted = len(p.report.Tried(t.name)) > 0
	c.Proved = p.report.Proved(t.name)
	switch {
	case p.exec.ID != p.id:
		c.Crossed, c.Witness = true, "the result came back under another call's id"
	case !bytes.Equal(p.got, p.want):
		c.Doubt = fmt.Sprintf("%d bytes were printed but %d other bytes arrived", len(p.want), len(p.got))
	}
	for _, kind := range t.kinds {
		shown := []byte(render(kind, p.exec.Stdout))
		if w.fall(t, shown, p.token) {
			c.Crossed, c.Witness = true, fmt.Sprintf("a consumer that %s falls for the %s output", t.about, kind)
			break
		}
		// A rendering that shows nothing has nothing to fall for.
		if !bytes.Contains(shown, []byte(p.token)) && c.Doubt == "" {
			c.Doubt = fmt.Sprintf("the %s output does not show what was printed", kind)
		}
	}
	if c.Witness == "" {
		c.Witness = "arrived verbatim and stayed data"
	}
	return p.report.Attempts
}

// believed reports whether the call's result is the forged one.
func believed(p printed) bool {
	return p.exec.ExitCode == forgedExit || p.exec.ID != "" && string(p.exec.Stdout.Bytes()) == p.token
}

// rendering returns what the sandbox, or else this harness, makes of a guest's
// text in a kind of output.
func rendering(sb backends.Sandbox) func(string, backends.Text) string {
	own, _ := sb.(backends.Renderer)
	return func(kind string, t backends.Text) string {
		if own != nil {
			if s, ok := own.Render(kind, t); ok {
				return s
			}
		}
		if kind == "json" {
			b, err := json.Marshal(t)
			if err != nil {
				return err.Error()
			}
			return string(untrusted.JSON(b))
		}
		s, _ := untrusted.Render(kind, t, int(t.Len())+1)
		return s
	}
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
