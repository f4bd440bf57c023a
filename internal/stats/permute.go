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

// differences returns mean(head) - mean(base) of a quad for each split.
func (q Quad) differences() [6]float64 {
	v := [4]float64{q.Base[0], q.Base[1], q.Head[0], q.Head[1]}
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
func (p Permutation) Effect() float64 {
	sum := 0.0
	for _, q := range p.quads {
		sum += q.differences()[0]
	}
	return sum / float64(len(p.quads))
}

// P is the two-sided p-value of "the head is the base plus shift".
func (p Permutation) P(shift float64) float64 {
	seen := math.Abs(p.Effect() - shift)
	seen -= 1e-12 * seen // a sum in another order is still as large
	extreme, all := 0, 0
	p.each(shift, func(effect float64) {
		all++
		if math.Abs(effect) >= seen {
			extreme++
		}
	})
	return p.portion(extreme, all)
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
//
// Taking a shift c off the head turns the effect E into E-c, and that of a
// relabelling, R, into R-ck, where k is the mean over the quads of how many heads
// stay heads, less those that become bases, in halves. So a relabelling is as extreme as
// what was measured exactly between (E+R)/(1+k) and (E-R)/(1-k), with E in between.
func (p Permutation) Interval(alpha float64) (low, high float64) {
	if p.Smallest() > alpha {
		return math.Inf(-1), math.Inf(1)
	}
	effect := p.Effect()
	var lows, highs []float64
	p.eachShifted(func(r, k float64) {
		a, b := quotient(effect+r, 1+k), quotient(effect-r, 1-k)
		if math.IsNaN(a) || math.IsNaN(b) { // as extreme whatever the shift
			lows, highs = append(lows, math.Inf(-1)), append(highs, math.Inf(1))
			return
		}
		lows, highs = append(lows, min(a, b)), append(highs, max(a, b))
	})
	slices.Sort(lows)
	slices.Sort(highs)
	// The interval ends where too few relabellings are as extreme.
	enough := 1
	for p.portion(enough, len(lows)) <= alpha {
		enough++
	}
	return min(lows[enough-1], effect), max(highs[len(highs)-enough], effect)
}

// quotient is a/b, and no number where b is nothing: k is a sum of fractions.
func quotient(a, b float64) float64 {
	if math.Abs(b) < 1e-9 {
		return math.NaN()
	}
	return a / b
}

// portion is the p-value when extreme of all relabellings are as extreme as what
// was measured, which counts itself among drawn ones.
func (p Permutation) portion(extreme, all int) float64 {
	if p.draws != nil {
		extreme, all = extreme+1, all+1
	}
	return float64(extreme) / float64(all)
}

// each calls f with the effect, but for its sign, under every relabelling or
// every drawn one, with shift taken off the head.
func (p Permutation) each(shift float64, f func(effect float64)) {
	p.eachShifted(func(r, k float64) { f(r - shift*k) })
}

// kept is, by split, half of the heads that stay heads less those that do not.
var kept = [6]float64{1, 0, 0, 0, 0, -1}

// eachShifted calls f with a relabelling's effect r without a shift and with what a
// shift is multiplied with, both but for their sign.
func (p Permutation) eachShifted(f func(r, k float64)) {
	n := float64(len(p.quads))
	table := make([][6]float64, len(p.quads))
	for i, q := range p.quads {
		table[i] = q.differences()
		for j := range table[i] {
			table[i][j] /= n
		}
	}
	if p.draws == nil {
		// The other three splits of the first quad turn every effect round,
		// and nobody asks for its sign.
		for s, d := range table[0][:3] {
			enumerate(table[1:], d, kept[s]/n, n, f)
		}
		return
	}
	for _, d := range p.draws {
		r, k := 0.0, 0.0
		for i, s := range d {
			r += table[i][s]
			k += kept[s] / n
		}
		f(r, k)
	}
}

func enumerate(table [][6]float64, r, k, n float64, f func(r, k float64)) {
	if len(table) == 0 {
		f(r, k)
		return
	}
	for s, d := range table[0] {
		enumerate(table[1:], r+d, k+kept[s]/n, n, f)
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
