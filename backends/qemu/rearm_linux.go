package qemu

import (
	"context"
	"errors"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

var _ backends.Rearmer = (*Sandbox)(nil)

// Rearm restores an instance from the golden snapshot after a divergence halted
// the last one. See backends.Rearmer.
func (s *Sandbox) Rearm(ctx context.Context) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	halted := s.state == backends.StateFailed && s.r != nil && s.cur == nil
	s.mu.Unlock()
	if !halted {
		return backends.Errorf(backends.ErrToolError, "rearm the qemu sandbox", "it is %s, not halted by a divergence", s.State())
	}
	v, err := s.restore(ctx, func(context.Context) error { return nil })
	if err == nil {
		// What halted it may still be there.
		if _, err = s.verify(ctx, v); err != nil {
			err = errors.Join(err, v.kill())
		}
	}
	if err != nil {
		return &backends.Error{Code: backends.ErrResetFailed, Doing: "rearm the qemu sandbox", Err: err, Fix: "boot a fresh sandbox"}
	}
	s.mu.Lock()
	s.cur, s.state = v, backends.StateReady
	s.mu.Unlock()
	return nil
}
