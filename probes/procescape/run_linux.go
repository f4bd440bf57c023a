package procescape

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// toolDeadline bounds one execution of the payload.
const toolDeadline = 10 * time.Second

func run(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
	o := probes.Outcome{Evidence: map[string]any{}}
	id := canary.Identity(env.Sandbox)
	dir, remove, err := canary.Reachable(env.Dir, id)
	if err != nil {
		return o, fmt.Errorf("make a place for the canaries: %w", err)
	}
	defer func() {
		if err := remove(); err != nil {
			env.Log.Warn("canary directory not removed", "err", err)
		}
	}()
	init := initStart()

	control := probes.Control{Target: "open agent on this host"}
	cp, err := newPen(env, dir, id, "")
	if err != nil {
		return o, err
	}
	defer cp.stop()
	controlled := sighting{}
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		control.Summary = "no open target: " + err.Error()
	} else {
		controlled = cp.execute(ctx, open, func(p *attack.ProcEscapeParams) {
			if cp.terminal != nil {
				p.TTY = cp.terminal.Path
			}
		})
		controlled.filter, controlled.filterErr = filterMode(ctx, open)
		if controlled.Err != nil {
			control.Summary = controlled.Err.Error()
		}
		if err := open.Close(); err != nil {
			env.Log.Warn("open target did not close", "err", err)
		}
	}

	shared := ""
	if s, ok := env.Sandbox.(backends.SharedTerminal); ok {
		if path, ok := s.HostTerminal(); ok {
			shared = path
		}
	}
	ap, err := newPen(env, dir, id, shared)
	if err != nil {
		return o, err
	}
	defer ap.stop()
	machine := false
	if m, ok := env.Sandbox.(backends.Machine); ok {
		machine = m.IsMachine()
	}
	attacked := ap.execute(ctx, env.Sandbox, func(p *attack.ProcEscapeParams) { p.VM = machine })
	attacked.filter, attacked.filterErr = filterMode(ctx, env.Sandbox)
	o.Cases = cases(cp, ap, controlled, attacked)
	if attacked.Report != nil {
		o.Attempts = attacked.Report.Attempts
	} else {
		o.Evidence["payload"] = attacked.Err.Error()
	}
	o.Evidence["host_init_unchanged"] = init != "" && init == initStart()
	judge(&o, control, attacked)
	return o, nil
}

// initStart tells one PID 1 of the host from another.
func initStart() string {
	b, err := os.ReadFile("/proc/1/stat")
	if err != nil {
		return ""
	}
	return startTime(string(b))
}

func judge(o *probes.Outcome, control probes.Control, s sighting) {
	o.Judge(probes.SeverityCritical)
	controlled, required := 0, 0
	for _, c := range o.Cases {
		if c.Required {
			required++
			if c.Controlled {
				controlled++
			}
		}
	}
	control.OK = required > 0 && controlled == required
	if control.Summary == "" {
		control.Summary = fmt.Sprintf("%d of %d required ways reached a canary process", controlled, required)
	}
	o.Control = control
	unharmed := 0
	for _, group := range groups {
		if st := s.states[group[0]]; st.Alive && !st.Harmed() && !st.Woken {
			unharmed++
		}
	}
	o.Witness = probes.Witness{Kind: "canary processes", Summary: fmt.Sprintf("%d of %d canary processes alive and untouched", unharmed, len(groups))}
}
