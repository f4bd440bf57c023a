//go:build linux

// Package payload is the guest half of P-A5: it outstays its deadline and
// leaves a survivor that spins and beats.
package payload

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// maxLife bounds a survivor that nobody killed.
const maxLife = 20 * time.Second

// The roles of the processes that the tool starts.
const (
	roleSurvivor = "survivor"
	roleMiddle   = "middle" // starts the survivor and exits, which orphans it
)

// Run is the tool time.bomb.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.TimeBombParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		fmt.Fprintln(in.Stderr, "time.bomb: bad parameters:", err)
		return 2
	}
	if p.Life <= 0 || p.Life > maxLife {
		p.Life = maxLife
	}
	switch {
	case p.Role != "" && len(p.Bombs) == 1:
		return play(ctx, p)
	case p.Do == attack.BombExplode && len(p.Bombs) == 1:
		return explode(ctx, in, p)
	case p.Do == attack.BombProve:
		return prove(ctx, in, p)
	case p.Do == attack.BombRead:
		return read(in, p)
	}
	fmt.Fprintln(in.Stderr, "time.bomb: nothing to do")
	return 2
}

// explode starts the survivor and stays.
func explode(ctx context.Context, in wire.ToolInput, p attack.TimeBombParams) int {
	harden(p.Bombs[0].Mode)
	if err := light(p, p.Bombs[0]); err != nil {
		fmt.Fprintln(in.Stderr, "time.bomb:", err)
		return 3
	}
	select {
	case <-ctx.Done():
		return 1
	case <-time.After(min(p.Run, maxLife)):
		return 0
	}
}

// harden makes a polite request to end go unheard.
func harden(mode string) {
	if mode == attack.BombIgnoreSIGTERM {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
}

// prove takes the same way for every mode, and ends what it started.
func prove(ctx context.Context, in wire.ToolInput, p attack.TimeBombParams) int {
	r := wire.NewRecorder(attack.TimeBomb, p.Nonce)
	for _, b := range p.Bombs {
		r.Prove(wire.Outcome(b.Mode, "survive", "a survivor inside, ended again", proveOne(ctx, p, b)))
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

func proveOne(ctx context.Context, p attack.TimeBombParams, b attack.Bomb) error {
	ctx, cancel := context.WithTimeout(ctx, proofWait)
	defer cancel()
	if err := light(p, b); err != nil {
		return err
	}
	defer forget(b.Token)
	var first beat
	err := poll(ctx, func() bool {
		now, err := readBeat(b.Token)
		if first.count == 0 {
			first = now
		}
		return err == nil && now.count > first.count
	})
	if first.pid > 1 {
		_ = syscall.Kill(first.pid, syscall.SIGKILL)
	}
	if err != nil {
		return fmt.Errorf("no beat of the survivor: %w", err)
	}
	if err := poll(ctx, func() bool { return ended(first.pid) }); err != nil {
		return fmt.Errorf("the survivor did not end: %w", err)
	}
	return nil
}

// read reports the counters, after it has read one of its own in the same way.
func read(in wire.ToolInput, p attack.TimeBombParams) int {
	r := wire.NewRecorder(attack.TimeBomb, p.Nonce)
	own := wire.NewNonceString()
	f, err := openBeat(own)
	if err == nil {
		err = f.write(beat{count: 1, pid: os.Getpid()})
		f.close()
	}
	if err == nil {
		_, err = readBeat(own)
	}
	forget(own)
	for _, b := range p.Bombs {
		r.Prove(wire.Outcome(b.Mode, "beat", "a counter inside", err))
		got, err := readBeat(b.Token)
		a := wire.Outcome(b.Mode, "beat", "the survivor's counter", err)
		if err == nil {
			a.Detail = strconv.FormatInt(got.count, 10)
		}
		r.Try(a)
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}
