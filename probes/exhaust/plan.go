package exhaust

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	// minMemoryMargin covers what a cgroup charges in advance, and the VMM's
	// or the agent's own pages.
	minMemoryMargin = 16 << 20
	// minTaskMargin covers the tasks of the runtime around the sandbox.
	minTaskMargin = 8
	// maxTaskMargin keeps the margin well below the 64 by which the payload
	// goes past a limit.
	maxTaskMargin = 32
	// machineGrowth is how many host tasks or descriptors a VMM may add while
	// its guest exhausts its own.
	machineGrowth = 16
	// blindBytes and blindCount are how far the payload goes where the policy
	// declares no limit.
	blindBytes = 256 << 20
	blindCount = 128
	// reach is how much of a limit has to be used, in percent, for it to have
	// been put to the test. That holds for a machine's memory too, of which its
	// kernel keeps a part that no tool can take.
	reach = 80
	// overCount is how far past a declared number the payload goes.
	overCount = 64
)

// plan is one sub-case with its numbers.
type plan struct {
	name     string
	required bool
	// limit is the declared one, 0 where there is none.
	limit int64
	// margin is how far above the limit the meter may go.
	margin int64
	// stop is where the payload stops itself.
	stop int64
	// machine: what is taken belongs to a guest kernel, so the host's meter
	// sees only the VMM. Memory is not like that: guest RAM is host memory.
	machine   bool
	notTested string
}

// plans computes the sub-cases from the declared limits. most is how much
// memory the payload may take at all.
func plans(l backends.Limits, machine bool, most int64) []plan {
	mem := plan{name: attack.ExhaustMemory, required: true, limit: l.MemoryBytes, margin: max(minMemoryMargin, l.MemoryBytes/10), stop: 2 * l.MemoryBytes}
	if mem.limit == 0 {
		mem.stop = blindBytes
	}
	mem.stop = min(mem.stop, most)
	if need := max(mem.limit*3/2+mem.margin, 64<<20); mem.stop < need {
		mem.notTested = fmt.Sprintf("a quarter of the host's available memory (%s) is too little to pass the limit with; %s is needed", mib(most), mib(need))
	}
	pids := plan{name: attack.ExhaustPids, required: true, machine: machine, limit: int64(l.Pids),
		margin: min(max(minTaskMargin, int64(l.Pids)/10), maxTaskMargin), stop: int64(l.Pids) + overCount}
	if pids.limit == 0 {
		pids.stop = blindCount
	}
	fds := plan{name: attack.ExhaustFDs, machine: machine, limit: int64(l.OpenFiles), margin: minTaskMargin, stop: int64(l.OpenFiles) + overCount}
	if fds.limit == 0 {
		fds.notTested = "the policy declares no limit of open files"
	}
	return []plan{mem, pids, fds}
}

// aim is what has to be nearly reached: the limit, or else where the payload
// stops.
func (p plan) aim() int64 {
	if p.limit > 0 {
		return p.limit
	}
	return p.stop
}

// enough is the least that has to be reached: below it a limit was not put to
// the test.
func (p plan) enough() int64 { return p.aim() * reach / 100 }

func (p plan) amount(n int64) string {
	switch p.name {
	case attack.ExhaustMemory:
		return mib(n)
	case attack.ExhaustPids:
		return fmt.Sprintf("%d tasks", n)
	}
	return fmt.Sprintf("%d descriptors", n)
}

func mib(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

// claims reads what the payload says of itself. A claim that cannot be read is
// none.
func claims(r *wire.PayloadReport) (reached int64, end string) {
	reached, err := strconv.ParseInt(r.Facts[attack.FactReached], 10, 64)
	if err != nil || reached < 0 {
		reached = 0
	}
	switch end = r.Facts[attack.FactEnd]; end {
	case attack.EndKilled, attack.EndRefused, attack.EndStopped:
		return reached, end
	}
	return reached, attack.EndBroken
}

// availableMemory reads how much memory this host could give without harm.
func availableMemory() (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.Join(lines.Err(), errors.New("/proc/meminfo has no MemAvailable"))
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
