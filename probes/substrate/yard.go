package substrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// shutdownTime bounds the end of one sandbox, also after the probe's own time
// is over.
const shutdownTime = 20 * time.Second

// yard supplies ready sandboxes. The run's own serves as long as it stays ready;
// one that is meant to be halted is the probe's own. A divergence costs it, unless
// it can be rearmed; so while one is in use the next one boots.
type yard struct {
	env  *probes.Env
	cur  backends.Sandbox
	next chan booted // nil when none is on its way
	// cancel ends the boot that is on its way.
	cancel context.CancelFunc
	// more is how many sandboxes are worth preparing.
	more int
}

type booted struct {
	sb  backends.Sandbox
	err error
}

func newYard(env *probes.Env) *yard { return &yard{env: env, cur: env.Sandbox} }

// expect says how many sandboxes are about to be spent.
func (y *yard) expect(n int) {
	if _, ok := y.env.Sandbox.(backends.Rearmer); ok {
		n = min(n, 1)
	}
	y.more = n
}

// spare leaves the run's own sandbox alone from now on, if there is another.
func (y *yard) spare() {
	if y.env.Fresh != nil && y.cur == y.env.Sandbox {
		y.cur = nil
	}
}

// take returns the current sandbox while it is ready, else another one.
func (y *yard) take(ctx context.Context) (backends.Sandbox, error) {
	if y.cur != nil && y.cur.State() == backends.StateReady {
		y.prepare(ctx)
		return y.cur, nil
	}
	if y.rearmed(ctx) {
		return y.cur, nil
	}
	if y.cur != nil {
		if err := y.dismiss(); err != nil {
			return nil, err
		}
	}
	if y.env.Fresh == nil {
		// There can be only one. Booting it anew is all that is left.
		sb := y.env.Sandbox
		if sb.State() != backends.StateReady {
			if err := errors.Join(stop(sb), sb.Boot(ctx)); err != nil {
				return nil, err
			}
		}
		y.cur = sb
		return sb, nil
	}
	var b booted
	if y.next != nil {
		b = <-y.next
		y.next = nil
		y.cancel()
	} else {
		b.sb, b.err = y.env.Fresh(ctx)
	}
	if b.err != nil {
		return nil, fmt.Errorf("boot a fresh sandbox: %w", b.err)
	}
	y.cur = b.sb
	y.prepare(ctx)
	return y.cur, nil
}

// rearmed makes a halted sandbox usable again where it can, and has a full
// verification say that it is clean.
func (y *yard) rearmed(ctx context.Context) bool {
	r, ok := y.cur.(backends.Rearmer)
	if !ok || r.Rearm(ctx) != nil {
		return false
	}
	st, err := y.cur.Reset(ctx)
	return err == nil && st.VerificationPassed
}

// prepare begins to boot the next sandbox, if one will be needed.
func (y *yard) prepare(ctx context.Context) {
	if y.next != nil || y.more <= 0 || y.env.Fresh == nil {
		return
	}
	y.more--
	ctx, y.cancel = context.WithCancel(ctx)
	next := make(chan booted, 1)
	y.next = next
	go func() {
		sb, err := y.env.Fresh(ctx)
		next <- booted{sb, err}
	}()
}

// dismiss shuts the current sandbox down, unless it is the run's own.
func (y *yard) dismiss() error {
	sb := y.cur
	y.cur = nil
	if sb == nil || sb == y.env.Sandbox {
		return nil
	}
	return stop(sb)
}

// close ends what is left. The runner shuts down what could not be ended here.
func (y *yard) close() {
	_ = y.dismiss()
	if y.next == nil {
		return
	}
	y.cancel()
	if b := <-y.next; b.err == nil {
		_ = stop(b.sb)
	}
	y.next = nil
}

func stop(sb backends.Sandbox) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	return sb.Shutdown(ctx)
}
