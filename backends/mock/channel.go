package mock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// The channel and the output are real in the mock, so these two tools do what
// the real ones do.

func forge(_ context.Context, in wire.ToolInput) int {
	var p attack.StdoutForgeParams
	if !params(in, &p) {
		return exitUsage
	}
	rec := wire.NewRecorder(attack.StdoutForge, p.Nonce)
	rec.Prove(wire.Attempt{Case: p.Case, Op: "write", Target: "simulated pipe", Result: wire.ResultOK})
	_, err := in.Stdout.Write(p.Content)
	a := wire.Outcome(p.Case, "write", "stdout", err)
	a.Detail = fmt.Sprintf("%d bytes", len(p.Content))
	rec.Try(a)
	if err := rec.Write(in.Stderr); err != nil {
		return exitFailed
	}
	return 0
}

func poison(ctx context.Context, in wire.ToolInput) int {
	var p attack.ChannelPoisonParams
	if !params(in, &p) {
		return exitUsage
	}
	content := attack.PoisonBytes(p.Mode, p.Nonce, p.CommandID)
	rec := wire.NewRecorder(attack.ChannelPoison, p.Nonce)
	hold := time.Duration(p.HoldMS) * time.Millisecond
	err := errors.New("no such mode")
	if content != nil {
		rec.Prove(wire.Attempt{Case: p.Mode, Op: "write", Target: "simulated pipe", Result: wire.ResultOK})
		if p.Mode == attack.PoisonDrip {
			err = drip(ctx, in.Channel, content, attack.PoisonShown(p.Mode, content), hold)
		} else if _, err = in.Channel.Write(content); err == nil {
			sleep(ctx, hold)
		}
	}
	rec.Try(wire.Outcome(p.Mode, "write", "message channel", err))
	return report(in, rec)
}

// drip writes byte by byte: what has to be seen of it without delay, the rest
// spread over hold.
func drip(ctx context.Context, w io.Writer, content []byte, quick int, hold time.Duration) error {
	for i := range content {
		if _, err := w.Write(content[i : i+1]); err != nil {
			return err
		}
		if i >= quick {
			sleep(ctx, hold/time.Duration(len(content)-quick))
		}
	}
	return nil
}
