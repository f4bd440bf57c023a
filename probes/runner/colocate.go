package runner

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// colocation is the proof that harness and sandbox share a machine, without
// which a host-side witness watches the wrong host.
type colocation struct {
	ok bool
	by string
}

// locate proves it by a process of the sandbox that is a live descendant of this
// one. A pid that the sandbox merely names proves nothing: the number may belong
// to anybody.
func locate(ctx context.Context, sb backends.Sandbox) colocation {
	if sb.Backend() == mockName {
		return colocation{true, "the mock runs in this process"}
	}
	var pids []int
	if h, ok := sb.(backends.HostProcesses); ok {
		list, err := h.HostPIDs(ctx)
		if err != nil {
			return colocation{false, printable("its host processes cannot be listed: " + err.Error())}
		}
		pids = list
	} else if p, ok := sb.(backends.Provenancer); ok {
		pids = append(pids, p.Provenance().VMMPID)
	}
	for _, pid := range pids {
		if descends(pid, os.Getpid()) {
			return colocation{true, fmt.Sprintf("its process %d is a live descendant of this one", pid)}
		}
	}
	return colocation{false, "no process of the sandbox is a live descendant of this one"}
}

// descends reports whether pid is alive and has root among its ancestors.
func descends(pid, root int) bool {
	for range 64 { // no tree of ours is deeper; guards against a changing /proc
		if pid <= 1 {
			return false
		}
		parent, state, ok := parentOf(pid)
		if !ok || state == "Z" || state == "X" {
			return false
		}
		if parent == root {
			return true
		}
		pid = parent
	}
	return false
}

// parentOf reads /proc/PID/stat. The command's name may hold blanks and
// brackets, so the fields begin after the last bracket.
func parentOf(pid int) (parent int, state string, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, "", false
	}
	s := string(b)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 2 {
		return 0, "", false
	}
	parent, err = strconv.Atoi(f[1])
	return parent, f[0], err == nil
}
