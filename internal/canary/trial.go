package canary

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Trial is one execution of an attack tool and all that came out of it. The
// exit code is not part of it: nothing is concluded from that.
type Trial struct {
	// Report is what the tool proved and tried; nil when Err says why there
	// is none.
	Report *wire.PayloadReport
	// Err says why there is no report: the tool is missing, it timed out, its
	// output is not bound to this execution.
	Err error
	// Out is everything that came out, for the search for secrets.
	Out [][]byte
}

// Run executes tool with params under a fresh nonce, which build puts into them.
func Run(ctx context.Context, ex backends.Executor, tool string, deadline time.Duration, build func(nonce string) any) Trial {
	nonce := NewToken()
	raw := tap(ex)
	res, err := ex.Execute(ctx, backends.Invocation{Tool: tool, Params: build(nonce), Deadline: deadline})
	t := Trial{Out: [][]byte{res.Stdout.Bytes(), res.Stderr.Bytes()}}
	if b := raw(); err != nil {
		// A result that was refused has come out all the same.
		t.Out = append(t.Out, b)
	}
	switch {
	case errors.Is(err, backends.ErrToolTimeout):
		t.Err = fmt.Errorf("%s ran past its deadline of %s", tool, deadline)
		return t
	case err != nil:
		t.Err = fmt.Errorf("%s could not be run: %w", tool, err)
		return t
	case res.ExitCode == wire.ExitNoTool:
		t.Err = fmt.Errorf("the agent has no tool %s", tool)
		return t
	}
	r, err := wire.ParsePayloadReport(res.Stdout.Bytes(), tool, nonce)
	if err != nil {
		// The details may quote the guest; the kind of error is enough.
		t.Err = wire.ErrNotAPayloadReport
		if errors.Is(err, wire.ErrNotBound) {
			t.Err = wire.ErrNotBound
		}
		return t
	}
	t.Report = r
	for _, a := range r.Attempts {
		t.Out = append(t.Out, a.Data)
	}
	return t
}

// maxRaw bounds what is kept of a channel's bytes.
const maxRaw = 4 << 20

// tap listens in on the channel of ex, if it lets us. The function that it
// returns ends that and returns the first bytes that came.
func tap(ex backends.Executor) (end func() []byte) {
	c, ok := ex.(backends.ChannelTapper)
	if !ok {
		return func() []byte { return nil }
	}
	var mu sync.Mutex
	var kept []byte
	stop := c.Tap(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		kept = append(kept, b[:min(len(b), maxRaw-len(kept))]...)
	})
	return func() []byte {
		stop()
		mu.Lock()
		defer mu.Unlock()
		return kept
	}
}

// Proved reports whether the sub-case worked against a target inside.
func (t Trial) Proved(cas string) bool { return t.Report != nil && t.Report.Proved(cas) }

// Tried returns the attempts of a sub-case.
func (t Trial) Tried(cas string) []wire.Attempt {
	if t.Report == nil {
		return nil
	}
	return t.Report.Tried(cas)
}

// Claimed reports whether an attempt of the sub-case says that it succeeded.
func (t Trial) Claimed(cas string) bool {
	for _, a := range t.Tried(cas) {
		if a.Result == wire.ResultOK {
			return true
		}
	}
	return false
}

// Impossible says why the call of a sub-case does not even work on a target
// inside, and "" where it does or where the payload does not say.
func (t Trial) Impossible(cas string) string {
	if t.Report == nil || t.Proved(cas) {
		return ""
	}
	for _, a := range t.Report.Proof {
		if a.Case == cas && a.Errno != "" && (a.Result == wire.ResultDenied || a.Result == wire.ResultAbsent) {
			return "the call fails inside whatever its target (" + a.Errno + ")"
		}
	}
	return ""
}
