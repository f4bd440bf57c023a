// Package stats holds the order statistics that latency verdicts rest on. They
// assume nothing about the distribution: boot and reset times have none that
// deserves a name.
package stats

import (
	"math"
	"slices"
	"time"
)

// Rank returns the nearest rank, 1-based, of the p-th percentile of n samples.
func Rank(n, p int) int { return min(max((p*n+99)/100, 1), n) }

// Percentile returns the nearest-rank percentile of sorted samples, which must
// not be empty.
func Percentile(sorted []time.Duration, p int) time.Duration { return sorted[Rank(len(sorted), p)-1] }

// UpperRank returns the 1-based rank of the order statistic that bounds the
// p-th percentile from above in a two-sided 95 % confidence interval, and false
// when n samples are too few for one to exist (p95 needs 72, p99 needs 368).
func UpperRank(n, p int) (rank int, ok bool) { return boundRank(n, p, 0.975) }

// Needed is the smallest number of samples with which the p-th percentile has an
// upper bound.
func Needed(p int) int {
	for n := 1; ; n++ {
		if _, ok := UpperRank(n, p); ok {
			return n
		}
	}
}

// LowerRank is the matching lower bound.
func LowerRank(n, p int) (rank int, ok bool) {
	// The largest rank l with P(X < l) <= 2.5 %, where X counts the samples
	// at or below the percentile.
	k := reach(n, p, func(cum float64) bool { return cum > 0.025 })
	return k, k > 0
}

// boundRank finds the smallest rank u with P(X < u) >= level.
func boundRank(n, p int, level float64) (int, bool) {
	k := reach(n, p, func(cum float64) bool { return cum >= level })
	return min(k+1, n), k < n
}

// reach returns the smallest k for whose P(X <= k) enough holds, and n when there
// is none below. It begins ten standard deviations below the mean: what lies
// before is too little to count.
func reach(n, p int, enough func(cum float64) bool) int {
	q := float64(p) / 100
	mean := float64(n) * q
	from := max(0, int(mean-10*math.Sqrt(mean*(1-q))))
	term, cum := binomial(n, from, q), 0.0
	for k := from; k < n; k++ {
		if cum += term; enough(cum) {
			return k
		}
		term *= float64(n-k) / float64(k+1) * q / (1 - q)
	}
	return n
}

// Interval returns the two-sided 95 % confidence interval of the p-th percentile
// of sorted samples, by exact order statistics, and false when there are too few.
func Interval(sorted []time.Duration, p int) (low, high time.Duration, ok bool) {
	l, okLow := LowerRank(len(sorted), p)
	u, okHigh := UpperRank(len(sorted), p)
	if !okLow || !okHigh {
		return 0, 0, false
	}
	return sorted[l-1], sorted[u-1], true
}

// binomial is P(X = k) for n trials of probability q, in logarithms.
func binomial(n, k int, q float64) float64 {
	ln := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
	return math.Exp(ln(n) - ln(k) - ln(n-k) + float64(k)*math.Log(q) + float64(n-k)*math.Log1p(-q))
}

// Mean is the arithmetic mean of samples, which must not be empty.
func Mean(samples []time.Duration) time.Duration {
	var sum float64
	for _, s := range samples {
		sum += float64(s)
	}
	return time.Duration(sum / float64(len(samples)))
}

// Sorted returns a sorted copy.
func Sorted(samples []time.Duration) []time.Duration {
	s := slices.Clone(samples)
	slices.Sort(s)
	return s
}
