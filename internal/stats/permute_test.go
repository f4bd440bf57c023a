package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// quads draws values for n quads; ties are likely when few values are allowed.
func quads(t *rapid.T, n int) []Quad {
	value := rapid.SampledFrom([]float64{-3, -1, 0, 0.5, 1, 2, 7})
	if rapid.Bool().Draw(t, "continuous") {
		// Sums of these are exact, so that ties are.
		value = rapid.Map(rapid.IntRange(-1<<20, 1<<20), func(i int) float64 { return float64(i) / 1024 })
	}
	out := make([]Quad, n)
	for i := range out {
		out[i] = Quad{Base: [2]float64{value.Draw(t, "b"), value.Draw(t, "b")}, Head: [2]float64{value.Draw(t, "h"), value.Draw(t, "h")}}
	}
	return out
}

// relabelled returns the quads under every choice of two heads out of four blocks.
func relabelled(list []Quad) [][]Quad {
	if len(list) == 0 {
		return [][]Quad{nil}
	}
	q := list[0]
	v := []float64{q.Base[0], q.Base[1], q.Head[0], q.Head[1]}
	var out [][]Quad
	for a := range 4 {
		for b := a + 1; b < 4; b++ {
			var heads, bases []float64
			for i, x := range v {
				if i == a || i == b {
					heads = append(heads, x)
				} else {
					bases = append(bases, x)
				}
			}
			for _, rest := range relabelled(list[1:]) {
				out = append(out, append([]Quad{{Base: [2]float64(bases), Head: [2]float64(heads)}}, rest...))
			}
		}
	}
	return out
}

func effect(list []Quad) float64 {
	sum := 0.0
	for _, q := range list {
		sum += (q.Head[0]+q.Head[1])/2 - (q.Base[0]+q.Base[1])/2
	}
	return sum / float64(len(list))
}

// The p-value is what counting over every relabelling gives.
func TestPAgreesWithCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := quads(t, rapid.IntRange(1, 3).Draw(t, "n"))
		p := NewPermutation(list, 1)
		require.InDelta(t, effect(list), p.Effect(), 1e-9)
		extreme, all, square := 0, 0, 0.0
		for _, other := range relabelled(list) {
			all++
			e := effect(other)
			square += e * e
			if math.Abs(e) >= math.Abs(effect(list))-1e-9 {
				extreme++
			}
		}
		require.Equal(t, int(math.Pow(6, float64(len(list)))), all)
		require.InDelta(t, float64(extreme)/float64(all), p.P(0), 1e-9)
		require.InDelta(t, math.Sqrt(square/float64(all)), p.Spread(), 1e-9)
	})
}

// Where the labels mean nothing, a p-value of a or less comes up in at most a of
// all cases, exactly: over every relabelling of any data.
func TestPIsValidUnderTheNull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := relabelled(quads(t, 2))
		values := make([]float64, len(all))
		for i, list := range all {
			values[i] = NewPermutation(list, 1).P(0)
		}
		for _, a := range values {
			below := 0
			for _, v := range values {
				if v <= a+1e-12 {
					below++
				}
			}
			require.LessOrEqual(t, float64(below)/float64(len(values)), a+1e-9)
		}
	})
}

// And with data that do not tie it comes up exactly as often: it is uniform.
func TestPIsUniformUnderTheNull(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	const runs = 4000
	below := map[float64]int{}
	for range runs {
		list := make([]Quad, 3)
		for i := range list {
			noise := func() float64 { return math.Exp(rng.NormFloat64()) } // skewed, as latencies are
			list[i] = Quad{Base: [2]float64{noise(), noise()}, Head: [2]float64{noise(), noise()}}
		}
		p := NewPermutation(list, 1).P(0)
		for _, a := range []float64{0.05, 0.1, 0.25, 0.5, 0.75} {
			if p <= a {
				below[a]++
			}
		}
	}
	for a, n := range below {
		attainable := math.Floor(a*108) / 108 // p comes in steps of 2/216
		sd := math.Sqrt(attainable * (1 - attainable) / runs)
		require.InDelta(t, attainable, float64(n)/runs, 4*sd, "p <= %v", a)
	}
}

// The interval covers the true shift in at least 1-alpha of all relabellings.
func TestTheIntervalCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.Float64Range(-5, 5).Draw(t, "shift")
		const alpha = 0.2
		covered, all := 0, 0
		for _, list := range relabelled(quads(t, 2)) {
			for i := range list {
				list[i].Head[0] += shift
				list[i].Head[1] += shift
			}
			low, high := NewPermutation(list, 1).Interval(alpha)
			require.LessOrEqual(t, low, high)
			all++
			if low-1e-6 <= shift && shift <= high+1e-6 {
				covered++
			}
		}
		require.GreaterOrEqual(t, float64(covered)/float64(all), 1-alpha)
	})
}

// The interval is the test turned round: a shift inside is not rejected, one
// outside is.
func TestTheIntervalIsTheTestTurnedRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 4).Draw(t, "n")
		p := NewPermutation(quads(t, n), 1)
		const alpha = 0.02
		low, high := p.Interval(alpha)
		require.LessOrEqual(t, low, p.Effect())
		require.GreaterOrEqual(t, high, p.Effect())
		const step = 1e-6
		require.LessOrEqual(t, p.P(high+step), alpha)
		require.LessOrEqual(t, p.P(low-step), alpha)
		if high-low > 4*step {
			require.Greater(t, p.P(high-step), alpha)
			require.Greater(t, p.P(low+step), alpha)
			require.Greater(t, p.P(low+rapid.Float64Range(0.001, 0.999).Draw(t, "inside")*(high-low)), alpha)
		}
	})
}

func TestTooFewQuadsRejectNothing(t *testing.T) {
	p := NewPermutation([]Quad{{Base: [2]float64{1, 1}, Head: [2]float64{9, 9}}}, 1)
	require.InDelta(t, 1.0/3, p.P(0), 1e-12)
	require.InDelta(t, 1.0/3, p.Smallest(), 1e-12)
	low, high := p.Interval(0.01)
	require.True(t, math.IsInf(low, -1) && math.IsInf(high, 1))
}

// A drift that is the same for all blocks of time cancels in ABBA.
func TestALinearDriftCancels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slope := rapid.Float64Range(-3, 3).Draw(t, "slope")
		var list []Quad
		for i := range 5 {
			at := func(j int) float64 { return slope * float64(4*i+j) }
			q := Quad{Base: [2]float64{at(0), at(3)}, Head: [2]float64{at(1), at(2)}}
			if i%2 == 1 {
				q.Base, q.Head = q.Head, q.Base
			}
			list = append(list, q)
		}
		require.InDelta(t, 0, NewPermutation(list, 1).Effect(), 1e-9)
	})
}

// Drawing relabellings comes close to trying all of them, and always to the same.
func TestDrawnRelabellings(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var list []Quad
	for range 6 {
		v := func(m float64) float64 { return m + rng.NormFloat64() }
		list = append(list, Quad{Base: [2]float64{v(0), v(0)}, Head: [2]float64{v(0.5), v(0.5)}})
	}
	exact := NewPermutation(list, 1)
	require.Nil(t, exact.draws)
	drawn := NewPermutation(append(list, Quad{}), 1)
	require.Len(t, drawn.draws, resamples)
	require.InDelta(t, exact.P(0), drawn.P(0), 0.02, "a quad of zeros adds nothing")
	require.Equal(t, drawn.P(0), NewPermutation(append(list, Quad{}), 1).P(0))
	require.InDelta(t, 1e-4, drawn.Smallest(), 1e-9)
	low, high := drawn.Interval(0.01)
	require.Less(t, low, drawn.Effect())
	require.Greater(t, high, drawn.Effect())
}

func TestHolm(t *testing.T) {
	require.InDeltaSlice(t, []float64{0.03, 0.06, 0.06, 0.02}, Holm([]float64{0.01, 0.04, 0.03, 0.005}), 1e-12)
	require.Empty(t, Holm(nil))
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 8).Draw(t, "p")
		adjusted := Holm(p)
		for i := range p {
			require.GreaterOrEqual(t, adjusted[i], p[i])
			require.LessOrEqual(t, adjusted[i], min(1, float64(len(p))*p[i])+1e-12, "never worse than Bonferroni")
			for j := range p {
				if p[i] < p[j] {
					require.LessOrEqual(t, adjusted[i], adjusted[j], "the order stays")
				}
			}
		}
	})
}

func TestLag1(t *testing.T) {
	require.InDelta(t, -0.975, Lag1([][]float64{alternating(40)}), 1e-9)
	require.Zero(t, Lag1([][]float64{{5, 5, 5}, {1}, nil}))
	rising := make([]float64, 100)
	for i := range rising {
		rising[i] = float64(i)
	}
	require.Greater(t, Lag1([][]float64{rising}), 0.9)
	require.Zero(t, Lag1([][]float64{{1}, {2}, {3}}), "blocks do not follow on each other")
}

func alternating(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = float64(i%2)*2 - 1
	}
	return out
}

// The exact interval of a percentile covers it with at least 95 %, whatever the
// distribution: the sum of the binomial says so.
func TestPercentileIntervalsCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 1500).Draw(t, "n")
		p := rapid.SampledFrom([]int{50, 90, 95, 99}).Draw(t, "p")
		low, okLow := LowerRank(n, p)
		high, okHigh := UpperRank(n, p)
		if !okLow || !okHigh {
			require.Less(t, n, Needed(p))
			return
		}
		covered := 0.0
		for k := low; k < high; k++ {
			covered += binomial(n, k, float64(p)/100)
		}
		require.GreaterOrEqual(t, covered, 0.95-1e-9)
	})
}
