package stats

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Quad holds the values of four consecutive blocks, two of each configuration,
// measured in the order ABBA or BAAB. Blocks are what is permuted: the samples
// within one are not independent of each other.
type Quad struct {
	Base, Head [2]float64
}

// splits are the six ways to call two of four blocks the head; the first is the
// one that was measured.
var splits = [6][4]float64{{-1, -1, 1, 1}, {-1, 1, -1, 1}, {-1, 1, 1, -1}, {1, -1, -1, 1}, {1, -1, 1, -1}, {1, 1, -1, -1}}

// differences returns mean(head) - mean(base) of a quad for each split, with
// shift taken off the head first.
func (q Quad) differences(shift float64) [6]float64 {
	v := [4]float64{q.Base[0], q.Base[1], q.Head[0] - shift, q.Head[1] - shift}
	var out [6]float64
	for i, s := range splits {
		for j := range v {
			out[i] += s[j] * v[j] / 2
		}
	}
	return out
}

// maxExact is the largest number of relabellings that are all tried.
const maxExact = 6 * 6 * 6 * 6 * 6 * 6

// resamples are tried where there are more.
const resamples = 9999

// Permutation tests whether the head differs from the base by exchanging blocks
// within their quad, which is exact for any distribution, and stays so under a
// drift that is slow against a quad.
type Permutation struct {
	quads []Quad
	// draws are the sampled relabellings; nil means all of them.
	draws [][]uint8
}

// NewPermutation prepares a test of quads, of which there must be one at least.
// The seed chooses the relabellings where there are too many to try all.
func NewPermutation(quads []Quad, seed uint64) Permutation {
	p := Permutation{quads: quads}
	if math.Pow(6, float64(len(quads))) <= maxExact {
		return p
	}
	rng := rand.New(rand.NewPCG(seed, uint64(len(quads))))
	p.draws = make([][]uint8, resamples)
	for i := range p.draws {
		p.draws[i] = make([]uint8, len(quads))
		for j := range p.draws[i] {
			p.draws[i][j] = uint8(rng.IntN(6))
		}
	}
	return p
}

// Effect is the mean over the quads of mean(head) - mean(base).
func (p Permutation) Effect() float64 { return p.effect(0) }

func (p Permutation) effect(shift float64) float64 {
	sum := 0.0
	for _, q := range p.quads {
		sum += q.differences(shift)[0]
	}
	return sum / float64(len(p.quads))
}

// P is the two-sided p-value of "the head is the base plus shift".
func (p Permutation) P(shift float64) float64 {
	seen := math.Abs(p.effect(shift))
	seen -= 1e-12 * seen // a sum in another order is still as large
	extreme, all := 0, 0
	p.each(shift, func(effect float64) {
		all++
		if math.Abs(effect) >= seen {
			extreme++
		}
	})
	if p.draws != nil { // what was measured counts among the drawn
		extreme, all = extreme+1, all+1
	}
	return float64(extreme) / float64(all)
}

// Smallest is the smallest p-value that the design can give.
func (p Permutation) Smallest() float64 {
	if p.draws != nil {
		return 1 / float64(len(p.draws)+1)
	}
	return 2 / math.Pow(6, float64(len(p.quads)))
}

// Spread is the root mean square of the effect over the relabellings: how large
// an effect is when there is none.
func (p Permutation) Spread() float64 {
	sum, all := 0.0, 0
	p.each(0, func(effect float64) {
		sum += effect * effect
		all++
	})
	return math.Sqrt(sum / float64(all))
}

// Interval returns the shifts that the test does not reject at alpha: a 1-alpha
// confidence interval of the effect. An end is infinite where there are too few
// quads to reject any shift.
func (p Permutation) Interval(alpha float64) (low, high float64) {
	if p.Smallest() > alpha {
		return math.Inf(-1), math.Inf(1)
	}
	return p.end(alpha, -1), p.end(alpha, 1)
}

// end searches outwards for a shift that is rejected and then halves the way to
// the effect. The p-value falls with the distance from the effect.
func (p Permutation) end(alpha, direction float64) float64 {
	inside := p.Effect()
	step := p.reach()
	if step == 0 {
		return inside
	}
	outside := inside + direction*step
	for range 60 {
		if p.P(outside) <= alpha {
			break
		}
		step *= 2
		outside = inside + direction*step
	}
	for range 30 { // to a billionth of the values' own spread
		middle := inside + (outside-inside)/2
		if p.P(middle) <= alpha {
			outside = middle
		} else {
			inside = middle
		}
	}
	return outside
}

// reach is the distance between the smallest and the largest value of any quad.
func (p Permutation) reach() float64 {
	widest := 0.0
	for _, q := range p.quads {
		v := []float64{q.Base[0], q.Base[1], q.Head[0], q.Head[1]}
		widest = max(widest, slices.Max(v)-slices.Min(v))
	}
	return widest
}

// each calls f with the effect, but for its sign, under every relabelling or
// every drawn one.
func (p Permutation) each(shift float64, f func(effect float64)) {
	n := float64(len(p.quads))
	table := make([][6]float64, len(p.quads))
	for i, q := range p.quads {
		table[i] = q.differences(shift)
		for j := range table[i] {
			table[i][j] /= n
		}
	}
	if p.draws == nil {
		// The other three splits of the first quad turn every effect round,
		// and nobody asks for its sign.
		for _, d := range table[0][:3] {
			enumerate(table[1:], d, f)
		}
		return
	}
	for _, d := range p.draws {
		sum := 0.0
		for i, s := range d {
			sum += table[i][s]
		}
		f(sum)
	}
}

func enumerate(table [][6]float64, sum float64, f func(float64)) {
	if len(table) == 0 {
		f(sum)
		return
	}
	for _, d := range table[0] {
		enumerate(table[1:], sum+d, f)
	}
}

// Holm adjusts p-values for having tested all of them (Holm 1979). What is below
// alpha afterwards is so with a chance of at most alpha of being wrong anywhere.
func Holm(p []float64) []float64 {
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case p[a] < p[b]:
			return -1
		case p[a] > p[b]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(p))
	worst := 0.0
	for rank, i := range order {
		worst = max(worst, min(1, float64(len(p)-rank)*p[i]))
		out[i] = worst
	}
	return out
}

// Lag1 is the autocorrelation of neighbours within blocks, 0 without variation.
func Lag1(blocks [][]float64) float64 {
	var product, square float64
	for _, b := range blocks {
		if len(b) < 2 {
			continue
		}
		mean := 0.0
		for _, v := range b {
			mean += v / float64(len(b))
		}
		for i, v := range b {
			square += (v - mean) * (v - mean)
			if i > 0 {
				product += (v - mean) * (b[i-1] - mean)
			}
		}
	}
	if square == 0 {
		return 0
	}
	return product / square
}
