package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// dispatch starts a call. It answers at once what cannot be started, so that
// every dispatch gets a result.
func (s *server) dispatch(sess *session, d *wire.ToolDispatch) {
	if len(d.CommandID) == 0 || len(d.CommandID) > maxID {
		s.event(CodeMalformed, "command_id is empty or too long")
		return
	}
	sess.mu.Lock()
	dup := sess.live[d.CommandID]
	sess.live[d.CommandID] = true
	sess.mu.Unlock()
	if dup {
		s.event(CodeDuplicate, "a call with this command_id is in flight")
		return
	}
	tool, ok := s.o.Table[d.Tool]
	switch {
	case !ok:
		s.refuse(sess, d, wire.ExitNoTool, "the agent has no such tool")
		return
	case d.DeadlineMS <= 0 || d.DeadlineMS > maxDeadline.Milliseconds():
		s.refuse(sess, d, wire.ExitAgentError, fmt.Sprintf("deadline_ms is not between 1 and %d", maxDeadline.Milliseconds()))
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.refuse(sess, d, wire.ExitAgentError, fmt.Sprintf("%d calls are in flight, the agent accepts no more", s.o.MaxCalls))
		return
	}
	s.calls.Go(func() {
		defer func() { <-s.slots }()
		s.run(sess, d, tool)
	})
}

// refuse answers a dispatch that is not run.
func (s *server) refuse(sess *session, d *wire.ToolDispatch, code int, why string) {
	s.finish(sess, d, &wire.ToolResult{ExitCode: code, Stderr: why + "\n", EvidenceHash: wire.EvidenceHash(nil, []byte(why+"\n"))})
}

// finish sends a result and frees its command id, in this order: an id is in
// flight until its result is on its way.
func (s *server) finish(sess *session, d *wire.ToolDispatch, r *wire.ToolResult) {
	r.Type, r.CommandID = wire.TypeToolResult, d.CommandID
	body, err := wire.Encode(r)
	// Freed first inside the write lock: the host may use the id again as soon
	// as it has read the result.
	s.write(sess, func(w io.Writer) {
		sess.mu.Lock()
		delete(sess.live, d.CommandID)
		sess.mu.Unlock()
		if err == nil {
			_ = wire.WriteFrame(w, body)
		}
	})
}

// run runs one call and answers it, unless its session has ended.
func (s *server) run(sess *session, d *wire.ToolDispatch, tool Tool) {
	out, errw := newCapture(s.o.OutputCap, &s.budget), newCapture(s.o.OutputCap, &s.budget)
	defer out.free()
	defer errw.free()
	c := Call{Name: d.Tool, Params: d.Params, Deadline: time.Duration(d.DeadlineMS) * time.Millisecond,
		Stdout: out, Stderr: errw, KeepTree: s.o.KeepTree}
	if tool.Channel {
		c.Channel = rawChannel{s, sess}
	}
	run := s.o.Spawn
	if run == nil || tool.InProcess {
		run = inProcess(tool.Run)
	}
	exit, err := run(sess.ctx, c)
	if err != nil {
		if sess.ctx.Err() != nil {
			return
		}
		exit.Code = wire.ExitAgentError
		_, _ = fmt.Fprintf(errw, "%s\n", err)
	}
	r := &wire.ToolResult{ExitCode: exit.Code, TimedOut: exit.TimedOut}
	stdout := out.into(&r.Stdout, &r.StdoutEncoding, &r.StdoutLength, &r.StdoutSHA256)
	stderr := errw.into(&r.Stderr, &r.StderrEncoding, &r.StderrLength, &r.StderrSHA256)
	r.EvidenceHash = wire.EvidenceHash(stdout, stderr)
	s.finish(sess, d, r)
}

// errNotStopped is the honest answer about a goroutine that does not end: it
// cannot be killed, so its death cannot be confirmed.
var errNotStopped = errors.New("tool in the agent's process did not stop at its deadline")

// stopGrace is how long a tool in process may take to honour its context.
const stopGrace = 250 * time.Millisecond

// inProcess runs a tool as a goroutine with its panics contained.
func inProcess(fn wire.ToolFunc) SpawnFunc {
	return func(ctx context.Context, c Call) (Exit, error) {
		toolCtx, cancel := context.WithCancel(ctx)
		done := make(chan int, 1)
		go func() {
			defer func() {
				if p := recover(); p != nil {
					_, _ = fmt.Fprintln(c.Stderr, "tool panicked")
					done <- wire.ExitAgentError
				}
			}()
			done <- fn(toolCtx, wire.ToolInput{Name: c.Name, Params: c.Params, Stdout: c.Stdout, Stderr: c.Stderr, Channel: c.Channel})
		}()
		deadline := time.NewTimer(c.Deadline)
		defer deadline.Stop()
		timedOut := false
		select {
		case code := <-done:
			cancel()
			return Exit{Code: code}, nil
		case <-ctx.Done():
		case <-deadline.C:
			timedOut = true
		}
		if timedOut && c.KeepTree {
			context.AfterFunc(ctx, cancel)
			return Exit{Code: wire.ExitKilled, TimedOut: true}, nil
		}
		cancel()
		grace := time.NewTimer(stopGrace)
		defer grace.Stop()
		select {
		case <-done:
			if !timedOut {
				return Exit{}, ctx.Err()
			}
			return Exit{Code: wire.ExitKilled, TimedOut: true}, nil
		case <-grace.C:
			return Exit{}, errNotStopped
		}
	}
}

// rawChannel writes to the stream what a poisoning tool wants there.
type rawChannel struct {
	s    *server
	sess *session
}

func (r rawChannel) Write(p []byte) (n int, err error) {
	err = io.ErrClosedPipe
	r.s.write(r.sess, func(w io.Writer) { n, err = w.Write(p) })
	return n, err
}
