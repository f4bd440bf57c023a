package fsescape

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

// trial is one execution of the payload with everything that watched it.
type trial struct {
	canary.Trial
	access  canary.Access
	lookErr error
	// leak is the encoding in which each secret came out, "" for none.
	fileLeak, envLeak, imageLeak string
	disk                         diskResult
	socket                       bool
	strangers                    int
}

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

	control := probes.Control{Target: "open agent on this host"}
	cw, err := newWatch(env, dir, id)
	if err != nil {
		return o, err
	}
	defer cw.stop()
	controlled := trial{}
	open, err := env.Open(ctx, probes.OpenOptions{})
	if err != nil {
		control.Summary = "no open target: " + err.Error()
	} else {
		controlled = cw.execute(ctx, open, cw.images(), func(p *attack.FSEscapeParams) { p.PlantFD, p.CanaryOnly = true, true })
		if controlled.Err != nil {
			control.Summary = controlled.Err.Error()
		}
		if err := open.Close(); err != nil {
			env.Log.Warn("open target did not close", "err", err)
		}
	}

	cHealth := cw.check(ctx)

	aw, err := newWatch(env, dir, id)
	if err != nil {
		return o, err
	}
	defer aw.stop()
	aw.planted = os.Getenv(canary.EnvName) // by PlantEnv, before the sandbox was booted
	machine := isMachine(env.Sandbox)
	var watched []string
	im, known := env.Sandbox.(backends.Images)
	if known {
		watched = im.ImageFiles()
	}
	attacked := aw.execute(ctx, env.Sandbox, watched, func(p *attack.FSEscapeParams) { p.VM = machine })
	o.Cases = cases(view{control: controlled, attack: attacked, cHealth: cHealth, aHealth: aw.check(ctx),
		controlSecret: cw.secret.Token, attackSecret: aw.secret.Token, machine: machine, imagesKnown: known})
	if attacked.Report != nil {
		o.Attempts = attacked.Report.Attempts
		o.Evidence["facts"] = len(attacked.Report.Facts)
	} else {
		o.Evidence["payload"] = attacked.Err.Error()
	}
	judge(&o, control, attacked)
	return o, nil
}

func isMachine(sb backends.Sandbox) bool {
	m, ok := sb.(backends.Machine)
	return ok && m.IsMachine()
}

func judge(o *probes.Outcome, control probes.Control, t trial) {
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
		control.Summary = fmt.Sprintf("%d of %d required ways led to the canary", controlled, required)
	}
	o.Control = control
	leaked := "secret in no output"
	if t.fileLeak+t.envLeak+t.imageLeak != "" {
		leaked = "secret in the output"
	}
	o.Witness = probes.Witness{Kind: "canary file, inotify and digest", Summary: leaked + ", file " + t.access.String()}
}
