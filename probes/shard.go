package probes

import (
	"fmt"
	"strconv"
	"strings"
)

// Shard is one part of a selection that several runs share, so that a merge can
// tell a part that is missing from one that was never asked for.
type Shard struct {
	// Index counts from 1 to Of.
	Index int `json:"index"`
	Of    int `json:"of"`
	// Selected names what was selected before it was split, in battery order.
	Selected []string `json:"selected"`
}

// ParseShard reads "i/n", such as "2/3". Selected stays empty.
func ParseShard(s string) (Shard, error) {
	left, right, ok := strings.Cut(s, "/")
	i, err1 := strconv.Atoi(left)
	n, err2 := strconv.Atoi(right)
	if !ok || err1 != nil || err2 != nil || i < 1 || n < 1 || i > n {
		return Shard{}, fmt.Errorf("%q is not i/n with 1 <= i <= n, such as 2/3", s)
	}
	return Shard{Index: i, Of: n}, nil
}

func (s Shard) String() string { return fmt.Sprintf("%d/%d", s.Index, s.Of) }

// Part returns the shard's part of list: every Of-th element from the Index-th.
// The parts of all shards are disjoint and make up the list; each keeps its order,
// and so P-A6 stays the last attack of the shard that it falls to.
func Part[T any](s Shard, list []T) []T {
	var out []T
	for i := s.Index - 1; i < len(list); i += s.Of {
		out = append(out, list[i])
	}
	return out
}
