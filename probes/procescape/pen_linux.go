package procescape

import (
	"context"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	// ownPort is the agent's virtio port.
	ownPort = "bsm.agent.0"
	// obeyTime is how long a request that was sent may take to be carried out.
	obeyTime = time.Second
	// quietTime is the same where the guest does not say what it sent.
	quietTime = 200 * time.Millisecond
)

// pen holds the canaries of one execution: a process per way, a secret file, a
// memory segment, a port that obeys and a terminal.
type pen struct {
	processes map[string]*canary.Process
	secret    *canary.Secret
	shm       *canary.Shm
	shmErr    error
	port      *canary.Port
	terminal  *canary.Terminal
	ttyErr    error
	ttyToken  string
}

// newPen starts the canaries. shared is the host's path of the terminal that
// the sandbox has; empty makes one of our own.
func newPen(env *probes.Env, dir string, id backends.Credential, shared string) (p *pen, err error) {
	p = &pen{processes: map[string]*canary.Process{}, ttyToken: canary.NewToken()}
	defer func() {
		if err != nil {
			p.stop()
		}
	}()
	for _, cas := range attack.ProcOnCanary() {
		c, err := canary.StartProcess(dir, id)
		if err != nil {
			return p, err
		}
		p.processes[cas] = c
		env.Sabotage("process canary "+cas, c.Stop)
	}
	if p.secret, err = canary.NewSecret(dir, id); err != nil {
		return p, err
	}
	env.Sabotage("secret canary", p.secret.Stop)
	if p.port, err = canary.ServePort(dir, id, p.processes[attack.ProcHostPort]); err != nil {
		return p, err
	}
	if p.shm, p.shmErr = canary.NewShm(id); p.shmErr == nil {
		env.Sabotage("shared memory canary", p.shm.Stop)
	}
	if shared != "" {
		p.terminal, p.ttyErr = canary.WatchTerminal(shared)
	} else {
		p.terminal, p.ttyErr = canary.NewTerminal(id)
	}
	if p.ttyErr == nil {
		env.Sabotage("terminal canary", p.terminal.Stop)
	}
	return p, nil
}

func (p *pen) stop() {
	if p.terminal != nil {
		p.terminal.Stop()
	}
	if p.shm != nil {
		p.shm.Stop()
	}
	if p.port != nil {
		p.port.Stop()
	}
	if p.secret != nil {
		p.secret.Stop()
	}
	for _, c := range p.processes {
		c.Stop()
	}
}

func (p *pen) params(nonce string) attack.ProcEscapeParams {
	out := attack.ProcEscapeParams{Nonce: nonce, Canaries: map[string]attack.ProcCanary{}, OwnPort: ownPort,
		SecretPath: p.secret.Path, SecretMarker: p.secret.Marker, Ports: []string{p.port.Path},
		// A line that a shell takes for a comment, should one read it.
		TTYToken: "# " + p.ttyToken + "\n"}
	for cas, c := range p.processes {
		out.Canaries[cas] = attack.ProcCanary{PID: c.PID, ID: c.ID, SecretAddr: c.SecretAddr, SecretLen: len(c.EnvSecret), TouchAddr: c.TouchAddr, FD: c.FD}
	}
	if p.shmErr == nil {
		out.ShmKey = p.shm.Key
	}
	return out
}

// sighting is one execution with what the host saw of every canary after it.
type sighting struct {
	canary.Trial
	states  map[string]canary.State
	errs    map[string]error // per way: the witness could not look
	leaks   map[string]string
	access  canary.Access
	pushed  bool
	checked map[string]error // per way: the witness's own test after it all
}

func (p *pen) execute(ctx context.Context, ex backends.Executor, tune func(*attack.ProcEscapeParams)) sighting {
	s := sighting{Trial: canary.Run(ctx, ex, attack.ProcEscape, toolDeadline, func(nonce string) any {
		params := p.params(nonce)
		tune(&params)
		return params
	}), states: map[string]canary.State{}, errs: map[string]error{}, leaks: map[string]string{}, checked: map[string]error{}}
	p.awaitPort(ctx, s.Trial)
	for cas, c := range p.processes {
		// The test comes first: a signal that was sent is carried out before a
		// process can be stopped and continued.
		s.checked[cas] = c.SelfCheck(ctx)
		s.states[cas], s.errs[cas] = c.Observe()
		for _, secret := range []string{c.ArgSecret, c.EnvSecret, c.FDSecret} {
			if how := canary.Leaked(secret, s.Out...); how != "" {
				s.leaks[cas] = how
			}
		}
	}
	s.access, s.errs[attack.ProcSetns] = p.secret.Observe()
	s.leaks[attack.ProcSetns] = canary.Leaked(p.secret.Token, s.Out...)
	s.checked[attack.ProcSetns] = p.secret.SelfCheck(ctx)
	if s.errs[attack.ProcShm] = p.shmErr; p.shmErr == nil {
		s.leaks[attack.ProcShm] = canary.Leaked(p.shm.Token, s.Out...)
		s.checked[attack.ProcShm] = p.shm.SelfCheck(ctx)
	}
	if s.errs[attack.ProcTTY] = p.ttyErr; p.ttyErr == nil {
		s.pushed, s.errs[attack.ProcTTY] = p.terminal.Typed(p.ttyToken)
		s.checked[attack.ProcTTY] = p.terminal.SelfCheck(ctx)
	}
	return s
}

// awaitPort gives whoever obeys a port's requests the time to do so.
func (p *pen) awaitPort(ctx context.Context, t canary.Trial) {
	wait := quietTime
	for _, a := range t.Tried(attack.ProcHostPort) {
		if a.Result == wire.ResultReached {
			wait = obeyTime
		}
	}
	if t.Report != nil && wait == quietTime {
		return // it says that nothing was sent
	}
	for deadline := time.Now().Add(wait); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		if st, err := p.processes[attack.ProcHostPort].Observe(); err != nil || st.Harmed() {
			return
		}
	}
}

// startTime is field 22 of a stat line, which tells processes with one number
// apart.
func startTime(stat string) string {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return ""
	}
	f := strings.Fields(stat[i+1:])
	if len(f) < 20 {
		return ""
	}
	return f[19]
}
