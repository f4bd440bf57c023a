package mock

import (
	"context"
	"errors"
	"fmt"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Reset plants a fresh epoch and a marker, restores the world, starts the agent
// anew and verifies from three sources.
func (s *Sandbox) Reset(ctx context.Context) (backends.ResetState, error) {
	if s.leaks.has(leakSubstrate) {
		return s.reset(ctx, backends.Sources()...)
	}
	return s.reset(ctx)
}

// ResetIgnoring resets with the comparison of the named sources off.
func (s *Sandbox) ResetIgnoring(ctx context.Context, off ...backends.Source) (backends.ResetState, error) {
	return s.reset(ctx, off...)
}

func (s *Sandbox) reset(ctx context.Context, off ...backends.Source) (backends.ResetState, error) {
	if err := s.take(ctx); err != nil {
		return backends.ResetState{}, resetFailed(err)
	}
	defer s.give()
	inst, err := s.ready("reset the mock")
	if err != nil {
		return backends.ResetState{}, err
	}
	s.setState(backends.StateResetting)
	st, err := inst.reset(ctx, off)
	if err != nil {
		s.setState(backends.StateFailed)
		return st, err
	}
	s.setState(backends.StateReady)
	return st, nil
}

func resetFailed(err error) error {
	return &backends.Error{Code: backends.ErrResetFailed, Doing: "reset the mock", Err: err}
}

func (i *instance) reset(ctx context.Context, off []backends.Source) (backends.ResetState, error) {
	marker := "/tmp/bsm-marker-" + wire.NewNonceString()
	i.world.write(marker, []byte("marker"))
	if i.client.Err() == nil { // a poisoned session takes no epoch
		epoch := wire.NewNonceString()
		ack, err := i.client.Reset(ctx, wire.ResetSignal{Reason: "post_dispatch", Epoch: epoch})
		if err != nil || ack.Epoch != epoch {
			return backends.ResetState{}, resetFailed(fmt.Errorf("the agent did not take the epoch: %w", err))
		}
	}
	i.restart()
	i.world.restore()
	if err := i.client.Resync(ctx); err != nil {
		return backends.ResetState{}, resetFailed(err)
	}
	st, err := integrity.Verify(ctx, i.golden, i.base, integrity.Readings{
		FSHash: func(context.Context) (string, error) { return i.world.fsHash(), nil },
		OpenFDCount: func(ctx context.Context) (int, error) {
			var n wire.OpenFDCount
			err := i.client.Query(ctx, wire.QueryOpenFDCount, &n)
			return n.Count, err
		},
		VMMState: func(context.Context) (string, error) { return i.world.vmmState(), nil },
	}, off...)
	switch {
	case err != nil:
		return st, err
	case i.client.Hello().Epoch != goldenEpoch:
		return st, resetFailed(errors.New("the epoch survived in the agent's memory"))
	case i.world.exists(marker):
		return st, resetFailed(errors.New("the marker survived"))
	}
	return st, nil
}
