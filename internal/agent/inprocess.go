package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// errNotStopped is the honest answer about a goroutine that does not end: it
// cannot be killed, so its death cannot be confirmed.
var errNotStopped = errors.New("tool in the agent's process did not stop at its deadline")

// stopGrace is how long a tool in process may take to honour its context.
const stopGrace = 250 * time.Millisecond

// crew runs tools as goroutines of the agent. A goroutine whose tool has ended
// waits for the next: starting one, and growing its stack, would cost more than
// most such tools do.
type crew struct {
	mu    sync.Mutex
	idle  []chan *call
	busy  int
	quiet chan struct{} // closed when the last tool ends after leave
	left  bool
}

// run has a goroutine of the crew run c.
func (w *crew) run(c *call) {
	w.mu.Lock()
	w.busy++
	if n := len(w.idle); n > 0 {
		next := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		next <- c // it has room for one
		return
	}
	w.mu.Unlock()
	go w.work(c)
}

func (w *crew) work(c *call) {
	next := make(chan *call, 1)
	for c != nil {
		c.inProcess()
		if !w.rest(next) {
			return
		}
		c = <-next
	}
}

// rest reports whether there may be another tool to run.
func (w *crew) rest(next chan *call) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	if w.left {
		if w.busy == 0 && w.quiet != nil {
			close(w.quiet)
		}
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// leave ends the crew. Tools whose context has ended are waited for, but no
// longer than stopGrace.
func (w *crew) leave() {
	w.mu.Lock()
	w.left = true
	for _, next := range w.idle {
		next <- nil
	}
	w.idle = nil
	var quiet chan struct{}
	if w.busy > 0 {
		quiet = make(chan struct{})
		w.quiet = quiet
	}
	w.mu.Unlock()
	if quiet == nil {
		return
	}
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-quiet:
	case <-grace.C:
	}
}

// attempt is one run of a tool in process: its goroutine answers, or, if that is
// late, a timer.
type attempt struct {
	c      *call
	cancel context.CancelFunc

	mu       sync.Mutex
	answered bool
	timedOut bool
	timer    *time.Timer
}

// inProcess runs the tool in this goroutine with its panics contained.
func (c *call) inProcess() {
	ctx, cancel := context.WithCancel(c.sess.ctx)
	a := &attempt{c: c, cancel: cancel}
	a.mu.Lock()
	a.timer = time.AfterFunc(c.deadline(), a.expire)
	a.mu.Unlock()
	code := c.contained(ctx)
	a.mu.Lock()
	timedOut := a.timedOut
	a.mu.Unlock()
	exit, err := Exit{Code: code}, ctx.Err()
	if timedOut {
		exit, err = Exit{Code: wire.ExitKilled, TimedOut: true}, nil
	}
	a.answer(exit, err)
	cancel()
}

func (c *call) contained(ctx context.Context) (code int) {
	defer func() {
		if p := recover(); p != nil {
			_, _ = fmt.Fprintln(&c.errw, "tool panicked")
			code = wire.ExitAgentError
		}
	}()
	return c.tool.Run(ctx, wire.ToolInput{Name: c.d.Tool, Params: c.d.Params, Stdout: &c.out, Stderr: &c.errw, Channel: c.channel()})
}

// expire ends the tool at its deadline, and gives it the grace to notice.
func (a *attempt) expire() {
	a.mu.Lock()
	if a.answered {
		a.mu.Unlock()
		return
	}
	a.timedOut = true
	if a.c.s.o.KeepTree {
		a.mu.Unlock()
		a.answer(Exit{Code: wire.ExitKilled, TimedOut: true}, nil)
		return
	}
	a.timer = time.AfterFunc(stopGrace, func() { a.answer(Exit{}, errNotStopped) })
	a.mu.Unlock()
	a.cancel()
}

// answer answers the call, once.
func (a *attempt) answer(exit Exit, err error) {
	a.mu.Lock()
	first := !a.answered
	a.answered = true
	a.timer.Stop()
	a.mu.Unlock()
	if first {
		a.c.answer(exit, err)
	}
}
