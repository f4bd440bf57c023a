package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// mockName is the backend that is no boundary.
const mockName = "mock"

// start makes and boots the first sandbox.
func (s *session) start(ctx context.Context) error {
	sb := s.Sandbox
	if sb == nil {
		var err error
		if sb, err = s.New(); err != nil {
			return err
		}
	}
	s.use(sb)
	if s.NoAutoBoot {
		if st := sb.State(); st != backends.StateReady {
			return fmt.Errorf("the sandbox is %s, and booting it was left to the caller", st)
		}
	} else if err := sb.Boot(ctx); err != nil {
		return err
	}
	s.booted(ctx)
	return nil
}

func (s *session) use(sb backends.Sandbox) {
	s.sb = sb
	if s.OnSandbox != nil {
		s.OnSandbox(sb)
	}
}

// booted measures what has just booted.
func (s *session) booted(ctx context.Context) {
	s.ran = false
	s.coloc = locate(ctx, s.sb)
	s.prov = nil
	if p, ok := s.sb.(backends.Provenancer); ok {
		v := p.Provenance()
		s.prov = &v
	}
}

// fresh replaces the sandbox by a newly booted one.
func (s *session) fresh(ctx context.Context) error {
	if err := s.stop(s.sb); err != nil {
		s.note("shutdown error: %s", err)
	}
	sb := s.sb
	if s.New != nil {
		var err error
		if sb, err = s.New(); err != nil {
			return err
		}
	}
	s.use(sb)
	if err := sb.Boot(ctx); err != nil {
		return err
	}
	s.booted(ctx)
	return nil
}

// ready boots a fresh sandbox when the last probe left the present one in any
// other state, so that a clean run ends ready.
func (s *session) ready(ctx context.Context) {
	if s.sb.State() == backends.StateReady || ctx.Err() != nil {
		return
	}
	if err := s.fresh(ctx); err != nil {
		s.note("fresh boot failed: %s", err)
	}
}

// end shuts down what is left.
func (s *session) end() {
	if s.sb == nil || s.NoAutoShutdown {
		return
	}
	if err := s.stop(s.sb); err != nil {
		s.note("shutdown error: %s", err)
	}
}

// stop shuts a sandbox down, also after the run's context ended.
func (s *session) stop(sb backends.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
	defer cancel()
	return sb.Shutdown(ctx)
}

// fleet holds the sandboxes that a probe booted, in case it does not come to
// shut them down.
type fleet struct {
	mu   sync.Mutex
	list []backends.Sandbox
}

func (f *fleet) add(sb backends.Sandbox) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, sb)
}

// take empties the fleet.
func (f *fleet) take() []backends.Sandbox {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.list
	f.list = nil
	return list
}

// freshFor is Env.Fresh.
func (s *session) freshFor() func(context.Context) (backends.Sandbox, error) {
	if s.New == nil {
		return nil
	}
	return func(ctx context.Context) (backends.Sandbox, error) {
		sb, err := s.New()
		if err != nil {
			return nil, err
		}
		s.extra.add(sb)
		if err := sb.Boot(ctx); err != nil {
			return nil, errors.Join(err, s.stop(sb))
		}
		return sb, nil
	}
}

// sweep shuts down what the probe left behind.
func (s *session) sweep() error {
	var errs []error
	for _, sb := range slices.Backward(s.extra.take()) {
		if sb.State() != backends.StateNotBooted {
			errs = append(errs, s.stop(sb))
		}
	}
	return errors.Join(errs...)
}
