package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// maxID bounds a command_id.
const maxID = 256

// Execute runs a tool and waits for its result. It returns ErrToolTimeout when
// the agent confirmed that it killed the tool's tree at the deadline, and an
// error that wraps ErrUnconfirmed when the agent stayed silent past deadline
// and grace: then the caller has to end the sandbox. When ctx ends first the
// call is given up, and the agent still ends the tool at its deadline.
func (c *Client) Execute(ctx context.Context, inv backends.Invocation) (backends.Execution, error) {
	if inv.ID == "" {
		inv.ID = wire.NewNonceString()
	}
	if inv.Deadline <= 0 {
		inv.Deadline = backends.DefaultDeadline
	}
	body, err := encodeDispatch(inv)
	if err != nil {
		return backends.Execution{}, err
	}
	s, err := c.session()
	if err != nil {
		return backends.Execution{}, err
	}
	k := key{kindCommand, inv.ID}
	ch, err := s.expect(k)
	if err != nil {
		return backends.Execution{}, err
	}
	begin := time.Now()
	msg, err := s.call(ctx, k, ch, body, inv.Deadline+s.o.Grace, ErrUnconfirmed)
	elapsed := time.Since(begin)
	if err != nil {
		return backends.Execution{}, toolError(ctx, inv, err)
	}
	return s.conclude(inv, msg.(*wire.ToolResult), elapsed)
}

func toolError(ctx context.Context, inv backends.Invocation, err error) error {
	switch {
	case errors.Is(err, ErrUnconfirmed):
		return fmt.Errorf("tool %s, deadline %s: %w", inv.Tool, inv.Deadline, err)
	case ctx.Err() != nil:
		return fmt.Errorf("tool %s: %w", inv.Tool, context.Cause(ctx))
	}
	return fmt.Errorf("tool %s: %w", inv.Tool, err)
}

// conclude turns a result into an execution, or says what is wrong with it.
func (s *session) conclude(inv backends.Invocation, r *wire.ToolResult, elapsed time.Duration) (backends.Execution, error) {
	bad := func(format string, args ...any) (backends.Execution, error) {
		return backends.Execution{}, backends.Errorf(backends.ErrProtocol, "run tool "+inv.Tool, format, args...)
	}
	stdout, err1 := wire.Output(r.Stdout, r.StdoutEncoding)
	stderr, err2 := wire.Output(r.Stderr, r.StderrEncoding)
	if err := errors.Join(err1, err2); err != nil {
		return bad("%w", err)
	}
	r.Stdout, r.Stderr = "", ""
	sum := wire.EvidenceHash(stdout, stderr)
	if !s.o.Plain && sum != r.EvidenceHash {
		return bad("evidence_hash does not match the output")
	}
	e := backends.Execution{ID: inv.ID, ExitCode: r.ExitCode, EvidenceHash: sum, Elapsed: elapsed}
	var err error
	if e.Stdout, err = text(stdout, r.StdoutLength, r.StdoutSHA256); err != nil {
		return bad("stdout: %w", err)
	}
	if e.Stderr, err = text(stderr, r.StderrLength, r.StderrSHA256); err != nil {
		return bad("stderr: %w", err)
	}
	switch {
	case r.TimedOut && elapsed < inv.Deadline/2:
		return bad("the agent says that the deadline of %s passed after %s", inv.Deadline, elapsed)
	case r.TimedOut:
		return e, &backends.ToolTimeoutError{Tool: inv.Tool, ID: inv.ID, Deadline: inv.Deadline, Elapsed: elapsed}
	case elapsed > inv.Deadline+s.o.Grace/2:
		// It ended by itself, but so late that the agent cannot have kept the
		// deadline: nobody knows what else of its tree is alive.
		return e, fmt.Errorf("tool %s answered %s after its deadline of %s: %w", inv.Tool, elapsed-inv.Deadline, inv.Deadline, ErrUnconfirmed)
	}
	return e, nil
}

// text wraps an output, with the agent's word for what it cut off.
func text(b []byte, total int64, sum string) (backends.Text, error) {
	if total == 0 && sum == "" {
		return backends.NewText(b), nil
	}
	var h [sha256.Size]byte
	if n, err := hex.Decode(h[:], []byte(sum)); err != nil || n != len(h) || len(sum) != 2*len(h) {
		return backends.Text{}, errors.New("cut output without a proper hash")
	}
	if total <= int64(len(b)) {
		return backends.Text{}, fmt.Errorf("cut output of %d bytes is said to be %d bytes long", len(b), total)
	}
	return backends.NewTruncatedText(b, total, h), nil
}

func encodeDispatch(inv backends.Invocation) ([]byte, error) {
	bad := func(format string, args ...any) ([]byte, error) {
		return nil, backends.Errorf(backends.ErrToolError, "dispatch tool "+printable(inv.Tool), format, args...)
	}
	if len(inv.ID) > maxID || !utf8.ValidString(inv.ID) || inv.Tool == "" || !utf8.ValidString(inv.Tool) {
		return bad("the id or the tool's name is empty, too long or not UTF-8")
	}
	params := json.RawMessage("{}")
	if inv.Params != nil {
		b, err := wire.Encode(inv.Params)
		if err != nil {
			return bad("marshal params: %w", err)
		}
		if b[0] != '{' {
			return bad("params are not a JSON object")
		}
		params = b
	}
	return frame(&wire.ToolDispatch{Type: wire.TypeToolDispatch, CommandID: inv.ID, Tool: inv.Tool, Params: params,
		DeadlineMS: int64((inv.Deadline + time.Millisecond - 1) / time.Millisecond)})
}

// expect reserves the answer to k.
func (s *session) expect(k key) (chan answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if _, dup := s.pending[k]; dup {
		return nil, backends.Errorf(backends.ErrDuplicateRequest, "call the agent", "id %s is in flight already", printable(k.id))
	}
	ch := make(chan answer, 1)
	s.pending[k] = ch
	return ch, nil
}

// call writes a frame and waits for the answer to k. After limit it is given up
// with the error late.
func (s *session) call(ctx context.Context, k key, ch chan answer, framed []byte, limit time.Duration, late error) (any, error) {
	var over <-chan time.Time
	if s.writeAtOnce(framed) {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
	} else {
		bounded, cancel := context.WithTimeoutCause(ctx, limit, late)
		defer cancel()
		if err := s.write(bounded, framed); err != nil {
			s.forget(k, false)
			return nil, err
		}
		ctx = bounded
	}
	err := late
	select {
	case a := <-ch:
		return a.msg, a.err
	case <-over:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.forget(k, true)
	select {
	case a := <-ch: // it came in the same moment
		return a.msg, a.err
	default:
		return nil, err
	}
}

// forget gives up the wait for k. An answer that was asked for may still come.
func (s *session) forget(k key, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pending[k]; !ok {
		return
	}
	delete(s.pending, k)
	switch {
	case !asked:
	case k.kind == kindReset:
		s.owedAcks++
	case len(s.forgotten) < maxForgotten:
		if s.forgotten == nil {
			s.forgotten = map[key]bool{}
		}
		s.forgotten[k] = true
	}
}

func frame(m any) ([]byte, error) {
	framed, err := wire.EncodeFrame(m)
	var size *wire.SizeError
	if errors.As(err, &size) {
		return nil, frameError(err)
	}
	return framed, err
}
