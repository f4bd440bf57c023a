package mock

import (
	"context"
	"syscall"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func processCases() []string {
	return []string{attack.ProcVisible, attack.ProcSignal, attack.ProcPidfd, attack.ProcGetfd, attack.ProcPtrace, attack.ProcVMRead,
		attack.ProcSetns, attack.ProcShm, attack.ProcHostPort, attack.ProcTTY, attack.ProcInit}
}

// escapeProcesses reports a world in which no process of the host is in sight.
// With the leak it really touches the canaries that it was given. PID 1 gets
// signal 0 and no other.
func (w *world) escapeProcesses(_ context.Context, in wire.ToolInput) int {
	var p attack.ProcEscapeParams
	if !params(in, &p) {
		return exitUsage
	}
	rec := wire.NewRecorder(attack.ProcEscape, p.Nonce)
	for _, c := range processCases() {
		rec.Prove(wire.Outcome(c, "touch", "simulated process inside", nil))
	}
	if w.leaks.crosses(leakProcesses) {
		crossProcesses(p, rec.Try)
	} else {
		for _, c := range processCases() {
			rec.Try(wire.Outcome(c, "touch", "", syscall.ESRCH))
		}
	}
	return report(in, rec)
}
