package agent

import (
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
	tool, ok := s.o.Table.Tool(d.Tool)
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
	if c := newCall(s, sess, d, tool); s.o.Spawn == nil || tool.InProcess {
		s.tools.run(c)
	} else {
		s.calls.Go(c.spawn)
	}
}

// refuse answers a dispatch that is not run.
func (s *server) refuse(sess *session, d *wire.ToolDispatch, code int, why string) {
	s.finish(sess, d, &wire.ToolResult{ExitCode: code, Stderr: why + "\n", EvidenceHash: wire.EvidenceHash(nil, []byte(why+"\n"))})
}

// finish sends a result and frees its command id, in this order: an id is in
// flight until its result is on its way.
func (s *server) finish(sess *session, d *wire.ToolDispatch, r *wire.ToolResult) {
	r.Type, r.CommandID = wire.TypeToolResult, d.CommandID
	framed, err := wire.EncodeFrame(r)
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if s.session() != sess {
		return
	}
	// Freed first inside the write lock: the host may use the id again as soon
	// as it has read the result.
	sess.mu.Lock()
	delete(sess.live, d.CommandID)
	sess.mu.Unlock()
	if err == nil {
		_, _ = s.rw.Write(framed)
	}
}

// call is one call that holds a slot until it is answered.
type call struct {
	s         *server
	sess      *session
	d         *wire.ToolDispatch
	tool      Tool
	out, errw capture
}

func newCall(s *server, sess *session, d *wire.ToolDispatch, tool Tool) *call {
	c := &call{s: s, sess: sess, d: d, tool: tool}
	c.out.cap, c.out.budget = s.o.OutputCap, &s.budget
	c.errw.cap, c.errw.budget = s.o.OutputCap, &s.budget
	return c
}

// channel is what a tool that is registered for it gets.
func (c *call) channel() io.Writer {
	if c.tool.Channel {
		return rawChannel{c.s, c.sess}
	}
	return nil
}

func (c *call) deadline() time.Duration { return time.Duration(c.d.DeadlineMS) * time.Millisecond }

// spawn runs the tool in a process tree of its own.
func (c *call) spawn() {
	exit, err := c.s.o.Spawn(c.sess.ctx, Call{Name: c.d.Tool, Params: c.d.Params, Deadline: c.deadline(),
		Stdout: &c.out, Stderr: &c.errw, Channel: c.channel(), KeepTree: c.s.o.KeepTree})
	c.answer(exit, err)
}

// answer sends the result, unless the call's session has ended, and gives back
// what the call held.
func (c *call) answer(exit Exit, err error) {
	defer func() { <-c.s.slots }()
	defer c.out.free()
	defer c.errw.free()
	if err != nil {
		if c.sess.ctx.Err() != nil {
			return
		}
		exit.Code = wire.ExitAgentError
		_, _ = fmt.Fprintf(&c.errw, "%s\n", err)
	}
	r := &wire.ToolResult{ExitCode: exit.Code, TimedOut: exit.TimedOut}
	stdout := c.out.into(&r.Stdout, &r.StdoutEncoding, &r.StdoutLength, &r.StdoutSHA256)
	stderr := c.errw.into(&r.Stderr, &r.StderrEncoding, &r.StderrLength, &r.StderrSHA256)
	r.EvidenceHash = wire.EvidenceHash(stdout, stderr)
	c.s.finish(c.sess, c.d, r)
}

// rawChannel writes to the stream what a poisoning tool wants there.
type rawChannel struct {
	s    *server
	sess *session
}

func (r rawChannel) Write(p []byte) (n int, err error) {
	r.s.wmu.Lock()
	defer r.s.wmu.Unlock()
	if r.s.session() != r.sess {
		return 0, io.ErrClosedPipe
	}
	return r.s.rw.Write(p)
}
