package proc

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseStat(t *testing.T) {
	tail := " S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 0 0"
	for name, c := range map[string]struct {
		stat string
		want process
		ok   bool
	}{
		"plain":             {"5 (sh)" + tail, process{5, 7, 'S', 4242}, true},
		"hostile name":      {"5 (a) Z 1 (b)" + tail, process{5, 7, 'S', 4242}, true},
		"newline in name":   {"5 (a\n) R)" + tail, process{5, 7, 'S', 4242}, true},
		"empty":             {"", process{}, false},
		"cut":               {"5 (sh) S 7 8", process{}, false},
		"no number":         {"5 (sh) S x 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242", process{}, false},
		"state of two":      {"5 (sh) SS 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242", process{}, false},
		"no closing at all": {"5 (sh S 7", process{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := parseStat(5, []byte(c.stat))
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, c.want, got)
			}
		})
	}
}

func TestUnderFollowsParents(t *testing.T) {
	ps := map[int]process{}
	for pid, ppid := range map[int]int{1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 30: 31, 31: 30, 40: 99} {
		ps[pid] = process{pid: pid, ppid: ppid}
	}
	got := under(ps, map[int]bool{10: true})
	var pids []int
	for pid := range got {
		pids = append(pids, pid)
	}
	slices.Sort(pids)
	require.Equal(t, []int{10, 11, 12}, pids, "a ring or a missing parent is not below anything")
	require.Empty(t, under(ps, nil))
	require.Empty(t, under(ps, map[int]bool{555: true}))
}

func TestSnapshotKnowsThisProcess(t *testing.T) {
	ps, err := snapshot()
	require.NoError(t, err)
	self := ps[os.Getpid()]
	require.Equal(t, os.Getppid(), self.ppid)
	require.Equal(t, startTime(os.Getpid()), self.start)
	require.False(t, self.dead())
}

func TestMeminfo(t *testing.T) {
	m, err := parseMeminfo([]byte("MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable: 60 kB\nHugePages_Total: 0\n"))
	require.NoError(t, err)
	require.EqualValues(t, 100<<10, m.TotalBytes)
	require.EqualValues(t, 60<<10, m.AvailableBytes)
	_, err = parseMeminfo([]byte("nothing\n"))
	require.Error(t, err)
}

func TestCleanIsOneBoundedLineOfText(t *testing.T) {
	require.Equal(t, "a b", clean([]byte("a\x00b\x00")))
	require.Equal(t, "?", clean([]byte{0xff}))
	require.Len(t, clean(make([]byte, 10_000)), 0)
	require.Len(t, clean([]byte(string(make([]byte, 300))+"x")), maxArgs)
}
