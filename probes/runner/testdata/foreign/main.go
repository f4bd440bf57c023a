// Command foreign is what a user of the public Go API writes: a sandbox of their
// own and the fork-bomb probe of the original package's documentation, run
// together. It is a module of its own, so it compiles against exported names
// only.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// toy is a sandbox with a pid limit that the host can read. It forks nothing.
type toy struct {
	state   backends.State
	limit   int // enforced; 0 is none
	highest int // the most tasks that the host saw
}

var _ backends.Sandbox = (*toy)(nil)

func (t *toy) Backend() string                { return "toy" }
func (t *toy) State() backends.State          { return t.state }
func (t *toy) Boot(context.Context) error     { t.state = backends.StateReady; return nil }
func (t *toy) Shutdown(context.Context) error { t.state = backends.StateNotBooted; return nil }

func (t *toy) Reset(context.Context) (backends.ResetState, error) {
	t.highest = 0
	return backends.ResetState{VerificationPassed: true}, nil
}

func (t *toy) Execute(_ context.Context, inv backends.Invocation) (backends.Execution, error) {
	switch inv.Tool {
	case "noop":
		return backends.Execution{ID: inv.ID}, nil
	case "shell.exec":
		const bomb = 200
		t.highest = bomb
		if t.limit > 0 {
			t.highest = min(bomb, t.limit)
		}
		return backends.Execution{ID: inv.ID, ExitCode: 1, Stderr: backends.NewText([]byte("fork: retry: Resource temporarily unavailable"))}, nil
	}
	return backends.Execution{}, backends.Errorf(backends.ErrToolError, "run "+inv.Tool, "no such tool")
}

// Usage makes the toy a backends.Metered.
func (t *toy) Usage(context.Context) (backends.Usage, error) {
	return backends.Usage{Tasks: t.highest, Method: "the toy's own counter"}, nil
}

const limit = 64

// forkBomb is P-A3-fork-bomb. The exit code is evidence only: the verdict rests
// on the tasks that the host counted.
var forkBomb = probes.Probe{
	Name: "P-A3-fork-bomb", Class: "A3", Expectation: probes.ShouldFail,
	Description: "A tool fork-bombs the guest. The pids limit should stop it.",
	Needs:       []probes.Need{probes.NeedMeter},
	Budget:      5 * time.Second,
	Run: func(ctx context.Context, env *probes.Env) (probes.Outcome, error) {
		bomb := func(sb backends.Executor) (int, error) {
			exec, err := sb.Execute(ctx, backends.Invocation{Tool: "shell.exec", Params: map[string]string{"cmd": ":(){ :|:& };:"}, Deadline: 5 * time.Second})
			if err != nil {
				return 0, err
			}
			env.Log.Info("bombed", "exit_code", exec.ExitCode)
			use, err := sb.(backends.Metered).Usage(ctx)
			return use.Tasks, err
		}
		tasks, err := bomb(env.Sandbox)
		if err != nil {
			return probes.Outcome{}, err
		}
		without, err := bomb(&toy{state: backends.StateReady})
		if err != nil {
			return probes.Outcome{}, err
		}
		out := probes.Outcome{
			Witness: probes.Witness{Kind: "task meter", Summary: fmt.Sprintf("%d tasks at most", tasks)},
			Control: probes.Control{Target: "a toy without a limit", OK: without > limit},
			Cases: []probes.Case{{Name: "fork-bomb", Required: true, Attempted: tasks > 0, Proved: tasks > 0,
				Controlled: without > limit, WitnessAlive: true, Crossed: tasks > limit, Witness: fmt.Sprintf("%d tasks", tasks)}},
		}
		out.Judge(probes.SeverityHigh)
		return out, nil
	},
}

func run() error {
	for _, sb := range []*toy{{limit: limit}, {}} {
		r := runner.Runner{Sandbox: sb, Probes: []probes.Probe{forkBomb}}
		report, err := r.Run(context.Background())
		if err != nil {
			return err
		}
		if len(report.Probes) != 1 {
			return errors.New("the probe is not in the report")
		}
		if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"verdict": report.Probes[0].Verdict, "passed": report.Probes[0].Passed,
			"state": report.FinalSandboxState, "validated_against": report.Probes[0].ValidatedAgainst}); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
