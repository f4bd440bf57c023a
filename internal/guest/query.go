package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// queryTimeout bounds a query or a reset signal when ctx does not.
const queryTimeout = 10 * time.Second

// Query asks the agent about its world and decodes the result into one of
// *wire.OpenFDCount, *wire.MemUsage, *wire.ProcessList or *wire.Epoch. It
// returns an error that wraps ErrSilent when no answer came in time.
func (c *Client) Query(ctx context.Context, kind string, into any) error {
	s, err := c.session()
	if err != nil {
		return err
	}
	id := wire.NewNonceString()
	body, err := frame(&wire.GuestQuery{Type: wire.TypeGuestQuery, QueryID: id, QueryKind: kind, TS: time.Now().UTC().Format(time.RFC3339Nano)})
	if err != nil {
		return err
	}
	msg, err := s.ask(ctx, key{kindQuery, id}, body)
	if err != nil {
		return fmt.Errorf("query %s: %w", kind, err)
	}
	if err := decodeResult(msg.(*wire.GuestResponse).Result, into); err != nil {
		return backends.Errorf(backends.ErrProtocol, "query "+kind, "%w", err)
	}
	return nil
}

// Reset sends a reset signal and waits for the agent to acknowledge it. Only
// one can be under way.
func (c *Client) Reset(ctx context.Context, sig wire.ResetSignal) (wire.ResetAck, error) {
	s, err := c.session()
	if err != nil {
		return wire.ResetAck{}, err
	}
	sig.Type = wire.TypeResetSignal
	body, err := frame(&sig)
	if err != nil {
		return wire.ResetAck{}, err
	}
	s.mu.Lock()
	if _, busy := s.pending[key{kind: kindReset}]; !busy {
		s.epoch = sig.Epoch
	}
	s.mu.Unlock()
	msg, err := s.ask(ctx, key{kind: kindReset}, body)
	if err != nil {
		return wire.ResetAck{}, fmt.Errorf("reset signal: %w", err)
	}
	return *msg.(*wire.ResetAck), nil
}

func (s *session) ask(ctx context.Context, k key, framed []byte) (any, error) {
	ch, err := s.expect(k)
	if err != nil {
		return nil, err
	}
	msg, err := s.call(ctx, k, ch, framed, queryTimeout, ErrSilent)
	if err != nil && ctx.Err() != nil && backends.CodeOf(err) == "" {
		return nil, fmt.Errorf("%w: %w", ErrSilent, context.Cause(ctx))
	}
	return msg, err
}

// decodeResult is strict: an answer without its field must not read as zero.
func decodeResult(raw json.RawMessage, into any) error {
	if err := wire.DecodeResult(raw, into); err != nil {
		return err
	}
	switch v := into.(type) {
	case *wire.OpenFDCount:
		if v.Count < 0 {
			return errors.New("a negative count")
		}
	case *wire.ProcessList:
		if len(v.Processes) > wire.MaxProcesses {
			return fmt.Errorf("%d processes, at most %d are accepted", len(v.Processes), wire.MaxProcesses)
		}
	}
	return nil
}
