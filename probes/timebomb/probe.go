// Package timebomb is P-A5: tools that outstay their deadline and leave
// survivors, watched on the host's clock and in the host's process list.
package timebomb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/procwatch"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// Name is the probe's id.
const Name = "P-A5-time-bomb"

const (
	// life ends a survivor that nobody killed.
	life = 20 * time.Second
	// callDeadline bounds the proof and the reading of the beats.
	callDeadline = 15 * time.Second
	// closing is how long the control's survivors may outlive their target.
	closing = 3 * time.Second
)

// New returns the probe.
func New() probes.Probe {
	return probes.Probe{
		Name: Name, Class: probes.ClassTimeBomb, Expectation: probes.ShouldFail,
		Description: "A tool outstays its deadline in five ways: it sleeps, ignores SIGTERM, leaves its session, forks twice, or keeps the output pipes open; each time a child of it goes on spinning and counting. " +
			"The call has to end with SANDBOX_TOOL_TIMEOUT and the whole process tree with it. The class label A5 is the seed's: what is tested here is a limit of the runtime, not a compromised host agent.",
		Why: "The host's own clock saw every call end between its deadline and half a second later (two seconds under emulation), and afterwards nothing of the tree was alive: " +
			"for processes of this host by a random token in their arguments, in a virtual machine because the survivors' counters stood still and the VMM's processor time was back at its idle rate. " +
			"Where the tree is not killed, the same survivors were seen by the same witness.",
		Limits: "A process that a tool hands over to a service that was running before (cron, a container runtime's socket) is not tried here. " +
			"Where the host itself stood still meanwhile, or the virtual machine was busy before, there is no answer. In a virtual machine the host cannot see guest processes; a survivor that neither counts nor uses a tenth of a core would stay unseen.",
		Severity:   probes.SeverityHigh,
		Harm:       "peer denial of service",
		Techniques: []string{"T01", "T02", "T03"},
		ATTACK:     []string{"T1496", "T1564"},
		References: []string{
			"setsid(2), daemon(7), pid_namespaces(7)", "prctl(2): PR_SET_CHILD_SUBREAPER", "Linux kernel documentation, cgroup-v2: cgroup.kill",
			"the seed's red-team package, attacker class A5: a tool that sleeps past deadline_ms must end in a timeout error",
		},
		Needs:       []probes.Need{probes.NeedFuse, probes.NeedColocation},
		SideEffects: []probes.SideEffect{probes.EffectForks, probes.EffectSignals, probes.EffectWrites},
		Budget:      90 * time.Second,
		Run:         run,
	}
}

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	out := probes.Outcome{
		Witness: probes.Witness{Kind: "host clock and process list"},
		Control: probes.Control{Target: "open agent on this host that does not kill at the deadline"},
	}
	sb := newScene(env, env.Sandbox)
	if !sb.inside {
		out.Witness.Kind = "host clock, the VMM's processor time and the survivors' beat"
	}
	proved, pace, why := prove(ctx, env.Sandbox, &out)
	control, left := controls(ctx, env, sb.inside, pace, &out)

	pace.late = lateness(env.Sandbox)
	shots := sb.salvo(ctx, pace)
	for i := range shots.shots {
		s := &shots.shots[i]
		c := probes.Case{Name: s.Mode, Required: true, Proved: proved[s.Mode], Controlled: control[s.Mode]}
		shots.judge(s, &c)
		if why != "" && !c.Proved && c.Doubt == "" {
			c.Doubt = why
		}
		if left != "" && c.Doubt == "" {
			c.Doubt = left
		}
		out.Cases = append(out.Cases, c)
	}
	sb.sweep(shots)
	out.Judge(probes.SeverityHigh)
	out.Witness.Summary = shots.summary(out.Cases)
	out.Evidence = shots.evidence()
	return out, ctx.Err()
}

// lateness is how long after its deadline a call may end.
func lateness(sb backends.Sandbox) time.Duration {
	if p, ok := sb.(backends.Provenancer); ok && p.Provenance().Accelerator == "tcg" {
		return 2 * time.Second
	}
	return 500 * time.Millisecond
}

// prove has the payload start and end one survivor of each kind in time, and
// takes the pace of the attack from how long that took.
func prove(ctx context.Context, t backends.Executor, out *probes.Outcome) (proved map[string]bool, p pace, why string) {
	proved = map[string]bool{}
	bombs := fresh()
	nonce := wire.NewNonceString()
	began := time.Now()
	e, err := t.Execute(ctx, backends.Invocation{Tool: attack.TimeBomb, Deadline: callDeadline,
		Params: attack.TimeBombParams{Nonce: nonce, Do: attack.BombProve, Bombs: bombs, Life: life}})
	p = paceFor(time.Since(began) / time.Duration(len(bombs)))
	if err != nil {
		return proved, p, "the proof run failed: " + oneLine(err)
	}
	r, err := wire.ParsePayloadReport(e.Stdout.Bytes(), attack.TimeBomb, nonce)
	if err != nil {
		return proved, p, fmt.Sprintf("no report of the proof run (exit code %d): %v", e.ExitCode, err)
	}
	for _, b := range bombs {
		proved[b.Mode] = r.Proved(b.Mode)
	}
	out.Attempts = r.Proof
	return proved, p, ""
}

// controls fires the same bombs where nothing kills them. left says what stayed
// behind of them.
func controls(ctx context.Context, env *probes.Env, inside bool, p pace, out *probes.Outcome) (seen map[string]bool, left string) {
	seen = map[string]bool{}
	t, err := env.Open(ctx, probes.OpenOptions{MemoryBytes: 1 << 30, Pids: 512, KeepTree: true})
	if err != nil {
		out.Control.Summary = "no open target: " + oneLine(err)
		return seen, ""
	}
	open := newScene(env, t)
	open.inside = inside                 // judged by the witness that judges the attack
	open.width = len(attack.BombModes()) // no sandbox's limit holds here
	p.late, p.windows = time.Second, 1   // survivors are expected: one look is enough
	shots := open.salvo(ctx, p)
	out.Control.OK = true
	var missed []string
	for _, s := range shots.shots {
		seen[s.Mode] = shots.survived(s)
		if !seen[s.Mode] {
			missed = append(missed, s.Mode)
		}
	}
	out.Control.Summary = fmt.Sprintf("%d of %d survivors seen alive after their deadline", len(shots.shots)-len(missed), len(shots.shots))
	if len(missed) > 0 {
		out.Control.OK = false
		out.Control.Summary += "; not seen: " + strings.Join(missed, ", ")
	}
	err = t.Close()
	if rest := cleared(ctx, shots.tokens()); rest != nil {
		left = "the control's survivors outlived their target: " + oneLine(errors.Join(rest, err))
	}
	for _, token := range shots.tokens() {
		for _, f := range attack.BeatFiles(token) {
			_ = os.Remove(f) // where it never was there is nothing to remove
		}
	}
	return seen, left
}

// cleared waits until none of the tokens' processes is on the host, and ends
// those that stay.
func cleared(ctx context.Context, tokens []string) error {
	w := &procwatch.Watch{}
	if !w.Alive() {
		return nil // no host processes to be seen here, so none were counted
	}
	ctx, cancel := context.WithTimeout(ctx, closing)
	defer cancel()
	for {
		found, err := w.Find(tokens...)
		if err != nil || len(found) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			errs := []error{fmt.Errorf("%d processes", len(found))}
			for _, token := range tokens {
				errs = append(errs, w.Kill(token))
			}
			return errors.Join(errs...)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func fresh() []attack.Bomb {
	var out []attack.Bomb
	for _, mode := range attack.BombModes() {
		out = append(out, attack.Bomb{Mode: mode, Token: wire.NewNonceString()})
	}
	return out
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
