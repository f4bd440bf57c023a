package mock

import (
	"context"
	"errors"
	"fmt"
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
		step := len(content)
		if p.Mode == attack.PoisonDrip {
			step = 1
		}
		// Every step has its time from the beginning, so that what a timer
		// takes too long does not add up.
		begin, steps := time.Now(), time.Duration(len(content)/step)
		err = nil
		for i := time.Duration(1); len(content) > 0 && err == nil; i++ {
			_, err = in.Channel.Write(content[:step])
			content = content[step:]
			sleep(ctx, time.Until(begin.Add(hold*i/steps)))
		}
	}
	rec.Try(wire.Outcome(p.Mode, "write", "message channel", err))
	return report(in, rec)
}
