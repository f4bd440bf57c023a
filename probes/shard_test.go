package probes

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The parts of a list are disjoint, in its order, and together exactly the list.
func TestPartsMakeUpTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "probes")
		of := rapid.IntRange(1, 12).Draw(t, "of")
		list := make([]int, n)
		for i := range list {
			list[i] = i
		}
		var all []int
		longest, shortest := 0, n
		for i := 1; i <= of; i++ {
			part := Part(Shard{Index: i, Of: of}, list)
			require.True(t, slices.IsSorted(part))
			require.Equal(t, part, Part(Shard{Index: i, Of: of}, list), "the same split every time")
			longest, shortest = max(longest, len(part)), min(shortest, len(part))
			all = append(all, part...)
		}
		slices.Sort(all)
		require.Equal(t, list, append([]int{}, all...))
		require.LessOrEqual(t, longest-shortest, 1)
	})
}

func TestParseShard(t *testing.T) {
	s, err := ParseShard("2/3")
	require.NoError(t, err)
	require.Equal(t, Shard{Index: 2, Of: 3}, s)
	require.Equal(t, "2/3", s.String())
	for _, bad := range []string{"", "2", "0/3", "4/3", "-1/3", "1/0", "a/b", "1/2/3", " 1/2", "1/99999999999999999999"} {
		_, err := ParseShard(bad)
		require.ErrorContains(t, err, "such as 2/3", bad)
	}
}
