package stats

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The exact 95 % order-statistic ranks for n=1000, from tables.
func TestRanks(t *testing.T) {
	for _, tc := range []struct{ p, lower, upper int }{{50, 469, 532}, {90, 881, 919}, {95, 936, 964}, {99, 983, 997}} {
		up, ok := UpperRank(1000, tc.p)
		require.True(t, ok)
		require.Equal(t, tc.upper, up, "p%d", tc.p)
		low, ok := LowerRank(1000, tc.p)
		require.True(t, ok)
		require.Equal(t, tc.lower, low, "p%d", tc.p)
	}
}

// A finite upper bound needs this many samples and no fewer.
func TestTooFewSamples(t *testing.T) {
	for _, tc := range []struct{ p, n int }{{95, 72}, {99, 368}} {
		require.Equal(t, tc.n, Needed(tc.p))
		_, ok := UpperRank(tc.n, tc.p)
		require.True(t, ok, "p%d of %d", tc.p, tc.n)
		_, ok = UpperRank(tc.n-1, tc.p)
		require.False(t, ok, "p%d of %d", tc.p, tc.n-1)
	}
}

func TestNearestRank(t *testing.T) {
	s := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[int]time.Duration{1: 1, 10: 1, 11: 2, 50: 5, 90: 9, 91: 10, 99: 10, 100: 10} {
		require.Equal(t, want, Percentile(s, p), "p%d", p)
	}
	require.Equal(t, time.Duration(7), Percentile([]time.Duration{7}, 99))
}

// An upper bound is never below the percentile that it bounds.
func TestBoundsEnclose(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 2000).Draw(t, "n")
		p := rapid.SampledFrom([]int{50, 90, 95, 99}).Draw(t, "p")
		if up, ok := UpperRank(n, p); ok {
			require.GreaterOrEqual(t, up, Rank(n, p))
		}
		if low, ok := LowerRank(n, p); ok {
			require.LessOrEqual(t, low, Rank(n, p))
		}
	})
}
