// Package payload is the guest half of P-A8: it writes malformed bytes to the
// message channel.
package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Run sends the mode's bytes through a pipe of its own, which proves that it can
// make and write them, then to the channel. Where the host then drops the
// session its report is lost; the host's tap speaks for it.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.ChannelPoisonParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		_, _ = fmt.Fprintln(in.Stderr, "channel.poison: bad params")
		return 2
	}
	content := attack.PoisonBytes(p.Mode, p.Nonce, p.CommandID)
	rec := wire.NewRecorder(attack.ChannelPoison, p.Nonce)
	rec.Prove(wire.Outcome(p.Mode, "write", "own pipe", throughPipe(content)))

	err := errors.New("the agent gave no channel")
	hold := time.Duration(p.HoldMS) * time.Millisecond
	switch {
	case in.Channel == nil || content == nil:
	case p.Mode == attack.PoisonDrip:
		err = drip(ctx, in.Channel, content, hold)
	default:
		if _, err = in.Channel.Write(content); err == nil {
			wait(ctx, hold)
		}
	}
	a := wire.Outcome(p.Mode, "write", "message channel", err)
	a.Detail = fmt.Sprintf("%d bytes", len(content))
	rec.Try(a)
	if err := rec.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

// drip writes what shows the poison, and spreads the rest over hold, a byte at a
// time.
func drip(ctx context.Context, w io.Writer, content []byte, hold time.Duration) error {
	shown := attack.PoisonShown(attack.PoisonDrip, content)
	if _, err := w.Write(content[:shown]); err != nil {
		return err
	}
	content = content[shown:]
	step := hold / time.Duration(len(content))
	for i := range content {
		if _, err := w.Write(content[i : i+1]); err != nil {
			return err
		}
		wait(ctx, step)
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func throughPipe(content []byte) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(content)
		_ = w.Close()
		wrote <- err
	}()
	got, err := io.ReadAll(r)
	if err := errors.Join(err, <-wrote); err != nil {
		return err
	}
	if len(content) == 0 || !bytes.Equal(got, content) {
		return errors.New("the pipe did not deliver the bytes")
	}
	return nil
}
