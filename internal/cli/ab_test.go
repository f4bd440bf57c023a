package cli

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	probecatalog "github.com/brainst0rm/sandbox-redteam/probes/catalog"
)

// timed is a sandbox whose calls take a known time.
type timed struct {
	fake
	call time.Duration
}

func (s *timed) Execute(ctx context.Context, _ backends.Invocation) (backends.Execution, error) {
	t := time.NewTimer(s.call)
	defer t.Stop()
	select {
	case <-t.C:
		return backends.Execution{}, nil
	case <-ctx.Done():
		return backends.Execution{}, ctx.Err()
	}
}

// timedApp has one backend, of which the weakness slow-calls makes every call ten
// times as slow: far more than any noise of a busy machine.
func timedApp() *App {
	const leak = "slow-calls"
	return &App{Out: os.Stdout, Err: os.Stderr, Version: "test", Terminal: terminal, Probes: probecatalog.All,
		Backends: func() []backends.Entry {
			return []backends.Entry{{
				Name: "timed", Title: "calls of a known time",
				New: func(o backends.Options) (backends.Sandbox, error) {
					s := &timed{fake: fake{name: "timed", state: backends.StateNotBooted}, call: time.Millisecond}
					if slices.Contains(o.Leaks, leak) {
						s.call *= 10
					}
					return s, nil
				},
				Leaks: []backends.Leak{{Name: leak, Class: "LAT", About: "x"}},
			}}
		}}
}
