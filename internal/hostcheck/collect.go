package hostcheck

import (
	"io"
	"os"
	"strconv"
	"strings"
)

// maxFact bounds what is read of one file; cpuinfo repeats itself per CPU.
const maxFact = 64 << 10

// Collect reads the facts of this host.
func Collect() Facts {
	f := collect(readFact)
	f.Rootless = os.Geteuid() != 0
	native(&f)
	return f
}

// CPUTime is processor time of this host since it booted, in ticks.
type CPUTime struct{ Steal, Total uint64 }

// ReadCPUTime reads it, and false where the kernel does not tell.
func ReadCPUTime() (CPUTime, bool) { return cpuTime(readFact("/proc/stat")) }

// cpuTime reads the first line of /proc/stat (proc_stat(5)): user, nice, system,
// idle, iowait, irq, softirq, steal; what follows is counted in user already.
func cpuTime(stat string) (CPUTime, bool) {
	const steal, fields = 8, 9
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < fields || f[0] != "cpu" {
		return CPUTime{}, false
	}
	var t CPUTime
	for i := 1; i < fields; i++ {
		n, err := strconv.ParseUint(f[i], 10, 64)
		if err != nil {
			return CPUTime{}, false
		}
		t.Total += n
		if i == steal {
			t.Steal = n
		}
	}
	return t, true
}

// Stolen is the fraction of the time since before that was stolen, 0 without any.
func (t CPUTime) Stolen(before CPUTime) float64 {
	if t.Total <= before.Total || t.Steal < before.Steal {
		return 0
	}
	return float64(t.Steal-before.Steal) / float64(t.Total-before.Total)
}

func readFact(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFact))
	if err != nil {
		return ""
	}
	return strings.Trim(string(b), "\n\x00 \t")
}
