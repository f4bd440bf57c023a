package backendtest

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// ResetsEnv names the environment variable with the number of resets of the
// growth test. The default keeps a suite short; a release runs 1000.
const ResetsEnv = "BSM_RESETS"

const (
	defaultResets = 15
	// heapSlack is how much the live heap may differ between two looks.
	heapSlack = 4 << 20
	// settleTime is what an old instance gets to disappear, which happens
	// beside the resets.
	settleTime = 10 * time.Second
)

// held is what this process and its host hold for an instance.
type held struct {
	fds, children, leftovers, routines int
	heap                               uint64
}

// growth resets often and compares what is held before and after.
func (s *suite) growth() {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		s.Skip("needs /proc to count descriptors and children; fix: run on Linux")
	}
	resets := defaultResets
	if v := os.Getenv(ResetsEnv); v != "" {
		var err error
		resets, err = strconv.Atoi(v)
		require.NoError(s, err, ResetsEnv)
	}
	sb := s.boot()
	reset := func(n int) {
		for range n {
			_, err := sb.Reset(s.Context())
			require.NoError(s, err)
		}
	}
	reset(3) // caches and pools fill up
	before := s.settled(held{})
	reset(resets)
	after := s.settled(before)
	require.LessOrEqual(s, after.fds, before.fds, "descriptors after %d resets", resets)
	require.LessOrEqual(s, after.children, before.children, "child processes after %d resets", resets)
	require.LessOrEqual(s, after.leftovers, before.leftovers, "things on the host after %d resets", resets)
	require.LessOrEqual(s, after.routines, before.routines, "goroutines after %d resets", resets)
	require.LessOrEqual(s, after.heap, before.heap+heapSlack, "live heap after %d resets", resets)
	s.Logf("%d resets: before %+v, after %+v", resets, before, after)
	s.shutdown(sb)
}

// settled looks until nothing is more than want says, or, without one, until two
// looks agree, and returns the last look.
func (s *suite) settled(want held) held {
	s.Helper()
	deadline := time.Now().Add(settleTime)
	last := s.look()
	for {
		time.Sleep(20 * time.Millisecond)
		now := s.look()
		calm := now.fds == last.fds && now.children == last.children && now.leftovers == last.leftovers && now.routines == last.routines
		if want != (held{}) {
			calm = now.fds <= want.fds && now.children <= want.children && now.leftovers <= want.leftovers && now.routines <= want.routines
		}
		if calm || time.Now().After(deadline) {
			return now
		}
		last = now
	}
}

func (s *suite) look() held {
	s.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(s, err)
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return held{fds: len(fds), children: s.children(), leftovers: len(s.h.Leftovers(s)), routines: runtime.NumGoroutine(), heap: m.HeapAlloc}
}

// children counts the processes whose parent is this one.
func (s *suite) children() int {
	s.Helper()
	procs, err := os.ReadDir("/proc")
	require.NoError(s, err)
	n, self := 0, strconv.Itoa(os.Getpid())
	for _, p := range procs {
		b, err := os.ReadFile("/proc/" + p.Name() + "/stat")
		if err != nil {
			continue // no process, or gone meanwhile
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == self {
			n++
		}
	}
	return n
}
