package procescape

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// errOwnKernel: the host cannot see what is in force around a guest's process.
var errOwnKernel = errors.New("its processes are not processes of this host")

// filterMode reads from the host which seccomp mode is in force around the
// innermost processes of x: "0" as soon as one of them has none.
func filterMode(ctx context.Context, x any) (string, error) {
	hp, ok := x.(backends.HostProcesses)
	if !ok || !hp.InsideIsHost() {
		return "", errOwnKernel
	}
	pids, err := hp.HostPIDs(ctx)
	if err != nil {
		return "", err
	}
	status := map[int]map[string]string{}
	parents := map[string]bool{}
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil { // it ended meanwhile
			continue
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			fields[k] = strings.TrimSpace(v)
		}
		status[pid] = fields
		parents[fields["PPid"]] = true
	}
	var modes []string
	for pid, fields := range status {
		if !parents[strconv.Itoa(pid)] && fields["Seccomp"] != "" {
			modes = append(modes, fields["Seccomp"])
		}
	}
	if len(modes) == 0 {
		return "", errors.New("the host sees none of its processes")
	}
	return slices.Min(modes), nil
}

// filter is posture: a system-call filter is part of every recommended profile
// for a sandbox on a shared kernel. The host reads it, the guest is not asked.
func filter(control, attacked sighting) probes.Case {
	c := probes.Case{Name: attack.ProcFilter, Controlled: control.filterErr == nil && control.filter == "0",
		WitnessAlive: attacked.filterErr == nil, Witness: "seccomp mode " + attacked.filter + " around the sandbox's processes"}
	if attacked.Report != nil {
		_, c.Attempted = attacked.Report.Facts[attack.ProcFilter]
		c.Proved = c.Attempted
	}
	switch {
	case errors.Is(attacked.filterErr, errOwnKernel):
		c.NotTested = attacked.filterErr.Error()
	case attacked.filterErr != nil:
		c.Doubt = "the host could not read it: " + attacked.filterErr.Error()
	case attacked.filter == "0":
		c.Missing, c.Severity = "no system-call filter is in force around the sandbox's processes", probes.SeverityMedium
	}
	return c
}
