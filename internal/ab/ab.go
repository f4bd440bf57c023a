// Package ab compares the latencies of two configurations on one host. It
// interleaves them, so that what drifts with time hits both alike, measures first
// how much the host tells a configuration from itself, and claims a difference
// only if it is significant, larger than that noise, and there again in a second
// run. There are three answers; inconclusive is one of them.
package ab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Arm is one of the two configurations.
type Arm int

// The arms.
const (
	Base Arm = iota
	Head
)

func (a Arm) String() string {
	if a == Head {
		return "head"
	}
	return "base"
}

// Series is what one block measured under one name.
type Series struct {
	// Samples are in the order of time. The warm-up is not among them.
	Samples []time.Duration
	// Failed counts the iterations without a latency. They stay in the
	// comparison as right-censored: slower than anything that was seen.
	Failed int
	Warmup int
}

// Block is what one sandbox measured between its boot and its shutdown, by name.
type Block map[string]Series

// Measure measures one block of an arm. An error ends the comparison.
type Measure func(ctx context.Context, arm Arm) (Block, error)

// Design is how the comparison is made.
type Design struct {
	// Rounds is the number of quads ABBA, BAAB, ABBA, ...: an arm has twice as
	// many blocks.
	Rounds int
	// Alpha is the level of significance after Holm's correction.
	Alpha float64
	// MinEffect is the smallest relative change that matters.
	MinEffect float64
	// NoiseFactor times the noise of A/A is the other lower limit.
	NoiseFactor float64
	// Seed chooses the relabellings where there are too many to try all.
	Seed uint64
}

// MinRounds is the smallest number of rounds with which a difference could be
// significant at 0.01 among a handful of metrics.
const MinRounds = 5

// DefaultDesign follows the recipe of the project's design.
func DefaultDesign() Design {
	return Design{Rounds: MinRounds, Alpha: 0.01, MinEffect: 0.05, NoiseFactor: 3, Seed: 1}
}

// The phases of a comparison, in their order.
const (
	PhaseAA      = "A/A"
	PhaseAB      = "A/B"
	PhaseConfirm = "confirm"
)

// ErrNothingMeasured is returned when the first block has no latency at all.
var ErrNothingMeasured = errors.New("nothing could be measured")

// Run carries the comparison out. watch is told before every block; it may be nil.
func Run(ctx context.Context, d Design, measure Measure, watch func(phase string, block, of int)) (Result, error) {
	if d.Rounds < 1 {
		return Result{}, fmt.Errorf("%d rounds: at least 1 is needed", d.Rounds)
	}
	if watch == nil {
		watch = func(string, int, int) {}
	}
	phase := func(name string, arms [2]Arm) (phaseData, error) {
		return d.run(ctx, arms, measure, func(i int) { watch(name, i, 4*d.Rounds) })
	}
	aa, err := phase(PhaseAA, [2]Arm{Base, Base})
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", PhaseAA, err)
	}
	ab, err := phase(PhaseAB, [2]Arm{Base, Head})
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", PhaseAB, err)
	}
	out := d.judge(aa, ab)
	if !out.needsConfirming() {
		return out, nil
	}
	again, err := phase(PhaseConfirm, [2]Arm{Base, Head})
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w", PhaseConfirm, err)
	}
	d.confirm(&out, again)
	return out, nil
}

// phaseData are the blocks of one phase: blocks[i] of labels[i], four to a quad.
type phaseData struct {
	blocks []Block
	labels []Arm
}

// order is that of a quad; every other one is turned round.
func order(round int) [4]Arm {
	if round%2 == 1 {
		return [4]Arm{Head, Base, Base, Head}
	}
	return [4]Arm{Base, Head, Head, Base}
}

// run measures one phase. arms are what the labels base and head stand for: in
// A/A both are the base.
func (d Design) run(ctx context.Context, arms [2]Arm, measure Measure, watch func(int)) (phaseData, error) {
	var out phaseData
	for round := range d.Rounds {
		for _, label := range order(round) {
			watch(len(out.blocks))
			b, err := measure(ctx, arms[label])
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				return phaseData{}, fmt.Errorf("block %d of %d, %s: %w", len(out.blocks)+1, 4*d.Rounds, arms[label], err)
			}
			if len(out.blocks) == 0 && arms[Head] == Base && !anything(b) {
				return phaseData{}, fmt.Errorf("%w: no iteration of the base succeeded", ErrNothingMeasured)
			}
			out.blocks, out.labels = append(out.blocks, b), append(out.labels, label)
		}
	}
	return out, nil
}

func anything(b Block) bool {
	for _, s := range b {
		if len(s.Samples) > 0 {
			return true
		}
	}
	return false
}

// names lists what was measured in any block, sorted.
func names(phases ...phaseData) []string {
	var out []string
	for _, p := range phases {
		for _, b := range p.blocks {
			for name := range b {
				if !slices.Contains(out, name) {
					out = append(out, name)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}
