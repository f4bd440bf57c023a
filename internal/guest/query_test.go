package guest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func TestQueryIsStrict(t *testing.T) {
	tests := map[string]struct {
		kind, result string
		into         any
		ok           bool
	}{
		"fd count":          {wire.QueryOpenFDCount, `{"count":7}`, &wire.OpenFDCount{}, true},
		"missing count":     {wire.QueryOpenFDCount, `{}`, &wire.OpenFDCount{}, false},
		"null count":        {wire.QueryOpenFDCount, `{"count":null}`, &wire.OpenFDCount{}, false},
		"shadowed count":    {wire.QueryOpenFDCount, `{"Count":7}`, &wire.OpenFDCount{}, false},
		"twice":             {wire.QueryOpenFDCount, `{"count":7,"count":8}`, &wire.OpenFDCount{}, false},
		"negative count":    {wire.QueryOpenFDCount, `{"count":-1}`, &wire.OpenFDCount{}, false},
		"float count":       {wire.QueryOpenFDCount, `{"count":7.5}`, &wire.OpenFDCount{}, false},
		"further key":       {wire.QueryOpenFDCount, `{"count":7,"x":1}`, &wire.OpenFDCount{}, false},
		"not an object":     {wire.QueryOpenFDCount, `7`, &wire.OpenFDCount{}, false},
		"memory":            {wire.QueryMemUsage, `{"total_bytes":2,"available_bytes":1}`, &wire.MemUsage{}, true},
		"half a memory":     {wire.QueryMemUsage, `{"total_bytes":2}`, &wire.MemUsage{}, false},
		"processes":         {wire.QueryProcessList, `{"processes":[{"pid":1,"comm":"init"}]}`, &wire.ProcessList{}, true},
		"null processes":    {wire.QueryProcessList, `{"processes":null}`, &wire.ProcessList{}, false},
		"epoch":             {wire.QueryEpoch, `{"epoch":"e"}`, &wire.Epoch{}, true},
		"epoch of a number": {wire.QueryEpoch, `{"epoch":1}`, &wire.Epoch{}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := connect(t, script{act: func(g *far, m any) {
				g.send(&wire.GuestResponse{Type: wire.TypeGuestResponse, QueryID: m.(*wire.GuestQuery).QueryID, Result: json.RawMessage(tt.result)})
			}})
			err := c.Query(t.Context(), tt.kind, tt.into)
			if tt.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, backends.ErrProtocol)
			}
		})
	}
}

func TestQueryWithoutAnswer(t *testing.T) {
	c := connect(t, script{act: func(g *far, m any) {
		if q := m.(*wire.GuestQuery); q.QueryKind == "nonsense" {
			g.send(&wire.ErrorEvent{Type: wire.TypeErrorEvent, Code: "SANDBOX_VSOCK_PROTOCOL_ERROR", Message: "unknown"})
		}
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	err := c.Query(ctx, wire.QueryEpoch, &wire.Epoch{})
	require.ErrorIs(t, err, ErrSilent)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	begin := time.Now()
	require.ErrorIs(t, c.Query(t.Context(), "nonsense", &wire.Epoch{}), backends.ErrProtocol)
	require.Less(t, time.Since(begin), queryTimeout/2, "a refused query must not wait")
	require.Equal(t, 1, c.Stats().ErrorEvents)
}

func TestResetAcks(t *testing.T) {
	n := 0
	var held *wire.ResetSignal
	c := connect(t, script{act: func(g *far, m any) {
		sig := m.(*wire.ResetSignal)
		if n++; n == 1 {
			held = sig // answered only together with the next
			return
		}
		if held != nil {
			g.send(&wire.ResetAck{Type: wire.TypeResetAck, Epoch: held.Epoch})
			held = nil
		}
		g.send(&wire.ResetAck{Type: wire.TypeResetAck, Epoch: sig.Epoch, Applied: []string{"clock"}})
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := c.Reset(ctx, wire.ResetSignal{Reason: "post_dispatch", Epoch: "one"})
	require.ErrorIs(t, err, ErrSilent)
	ack, err := c.Reset(t.Context(), wire.ResetSignal{Reason: "post_dispatch", Epoch: "two", Entropy: []byte{1}})
	require.NoError(t, err)
	require.Equal(t, "two", ack.Epoch, "the ack of a reset that was given up answers nobody")
	require.Equal(t, []string{"clock"}, ack.Applied)
	require.Equal(t, 1, c.Stats().Late)
}
