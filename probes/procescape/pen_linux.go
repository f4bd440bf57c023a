package procescape

import (
	"context"
	"errors"
	"strings"
	"sync"
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
	// quietTime is the same where the guest does not say what it sent, or says
	// that it sent nothing.
	quietTime = 200 * time.Millisecond
)

// groups are the ways that share a canary process: each leaves a mark of its
// own on it, and none ends it.
var groups = [][]string{{attack.ProcVisible, attack.ProcVMRead, attack.ProcGetfd, attack.ProcPtrace}, {attack.ProcPidfd}, {attack.ProcSignal}, {attack.ProcHostPort}}

// pen holds the canaries of one execution: processes, a secret file, a memory
// segment, a port that obeys and a terminal.
type pen struct {
	// owned has a process per group; processes finds it by way.
	owned     []*canary.Process
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
	if err = p.startProcesses(id); err != nil {
		return p, err
	}
	for i, group := range groups {
		env.Sabotage("process canary "+group[0], p.owned[i].Stop)
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

// startProcesses starts a canary per group, all at once.
func (p *pen) startProcesses(id backends.Credential) error {
	p.owned = make([]*canary.Process, len(groups))
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i := range groups {
		wg.Go(func() { p.owned[i], errs[i] = canary.StartProcess(id) })
	}
	wg.Wait()
	for i, group := range groups {
		for _, cas := range group {
			p.processes[cas] = p.owned[i]
		}
	}
	return errors.Join(errs...)
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
	for _, c := range p.owned {
		if c != nil {
			c.Stop()
		}
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
	// A tracer shows by what it writes. The secret is for the reader of memory,
	// so that the two are told apart.
	traced := out.Canaries[attack.ProcPtrace]
	traced.SecretAddr, traced.SecretLen = traced.TouchAddr, 8
	out.Canaries[attack.ProcPtrace] = traced
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
	// filter is the seccomp mode as the host reads it.
	filter    string
	filterErr error
}

func (p *pen) execute(ctx context.Context, ex backends.Executor, tune func(*attack.ProcEscapeParams)) sighting {
	s := sighting{Trial: canary.Run(ctx, ex, attack.ProcEscape, toolDeadline, func(nonce string) any {
		params := p.params(nonce)
		tune(&params)
		return params
	}), states: map[string]canary.State{}, errs: map[string]error{}, leaks: map[string]string{}, checked: map[string]error{}}
	p.awaitPort(ctx, ex, s.Trial)
	p.look(ctx, &s)
	s.access, s.errs[attack.ProcSetns] = p.secret.Observe()
	s.checked[attack.ProcSetns] = p.secret.SelfCheck(ctx)
	if s.errs[attack.ProcShm] = p.shmErr; p.shmErr == nil {
		s.checked[attack.ProcShm] = p.shm.SelfCheck(ctx)
	}
	p.scan(&s)
	if s.errs[attack.ProcTTY] = p.ttyErr; p.ttyErr == nil {
		s.pushed, s.errs[attack.ProcTTY] = p.terminal.Typed(p.ttyToken)
		s.checked[attack.ProcTTY] = p.terminal.SelfCheck(ctx)
	}
	return s
}

// look tests and observes every process, all at once. The test comes first: a
// signal that was sent is carried out before a process can be stopped and
// continued.
func (p *pen) look(ctx context.Context, s *sighting) {
	checked, errs := make([]error, len(groups)), make([]error, len(groups))
	states := make([]canary.State, len(groups))
	var wg sync.WaitGroup
	for i, c := range p.owned {
		wg.Go(func() {
			checked[i] = c.SelfCheck(ctx)
			states[i], errs[i] = c.Observe()
		})
	}
	wg.Wait()
	for i, group := range groups {
		for _, cas := range group {
			s.checked[cas], s.states[cas], s.errs[cas] = checked[i], states[i], errs[i]
		}
	}
}

// scan searches the output for every secret, in one pass.
func (p *pen) scan(s *sighting) {
	tokens, owner := []string{p.secret.Token}, []string{attack.ProcSetns}
	if p.shmErr == nil {
		tokens, owner = append(tokens, p.shm.Token), append(owner, attack.ProcShm)
	}
	for i, c := range p.owned {
		// An open file or a command line shows by a secret of its own, which
		// only the first group's ways bring out.
		if i == 0 {
			tokens, owner = append(tokens, c.ArgSecret, c.EnvSecret, c.FDSecret), append(owner, attack.ProcVisible, attack.ProcVMRead, attack.ProcGetfd)
		} else {
			tokens, owner = append(tokens, c.ArgSecret), append(owner, attack.ProcVisible)
		}
	}
	for i, how := range canary.Scan(tokens, s.Out...) {
		if how != "" {
			s.leaks[owner[i]] = how
		}
	}
}

// awaitPort gives whoever obeys a port's requests the time to do so.
func (p *pen) awaitPort(ctx context.Context, ex backends.Executor, t canary.Trial) {
	wait := quietTime
	for _, a := range t.Tried(attack.ProcHostPort) {
		if a.Result == wire.ResultReached {
			wait = obeyTime
		}
	}
	machine := false
	if m, ok := ex.(backends.Machine); ok {
		machine = m.IsMachine()
	}
	if t.Report != nil && wait == quietTime && !machine {
		return // it says that nothing was sent; only a machine may have ports of the host's
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
