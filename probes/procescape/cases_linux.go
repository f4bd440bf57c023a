package procescape

import (
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func cases(cp, ap *pen, control, attacked sighting) []probes.Case {
	var out []probes.Case
	for _, cas := range attack.ProcOnCanary() {
		required := cas == attack.ProcVisible || cas == attack.ProcSignal
		c := begin(cas, required, control, attacked)
		c.Controlled, _ = crossed(cas, control)
		c.Crossed, c.Witness = crossed(cas, attacked)
		if cas == attack.ProcVisible {
			c.Severity = probes.SeverityMedium
		}
		if st := attacked.states[cas]; !c.Crossed && c.Doubt == "" && st.Woken && !st.Harmed() {
			c.Doubt = "the canary process was woken by something that left no other mark"
		}
		out = append(out, finish(c, attacked))
	}
	setns := begin(attack.ProcSetns, false, control, attacked)
	setns.Controlled = control.leaks[attack.ProcSetns] != "" && control.access.Read
	setns.Crossed = attacked.leaks[attack.ProcSetns] != "" || attacked.access.Any()
	setns.Witness = "the canary file was reached through a namespace of the host"
	out = append(out, finish(setns, attacked))

	shm := begin(attack.ProcShm, false, control, attacked)
	shm.Controlled = control.leaks[attack.ProcShm] != ""
	shm.Crossed = attacked.leaks[attack.ProcShm] != ""
	if err := control.checked[attack.ProcShm]; err != nil && shm.Doubt == "" {
		shm.Doubt = "the control's witness failed the host's own test: " + err.Error()
	}
	shm.Witness = "the secret of a shared memory segment of the host came out"
	if cp.shmErr != nil || ap.shmErr != nil {
		shm.Doubt, shm.NotTested = "", "no System V shared memory on this host"
	}
	out = append(out, finish(shm, attacked))

	tty := begin(attack.ProcTTY, false, control, attacked)
	tty.Controlled, tty.Crossed = control.pushed, attacked.pushed
	tty.Severity, tty.Witness = probes.SeverityHigh, "a line that was pushed back inside was read from the host's terminal"
	if cp.ttyErr != nil || ap.ttyErr != nil {
		tty.Doubt, tty.NotTested = "", "no terminal could be watched on this host"
	}
	out = append(out, finish(tty, attacked))

	return append(out, filter(control, attacked), probes.Case{Name: attack.ProcInit, Attempted: len(attacked.Tried(attack.ProcInit)) > 0,
		NotTested: "signal 0 only: no control may end the host's init"})
}

// begin fills in what all ways share.
func begin(cas string, required bool, control, attacked sighting) probes.Case {
	c := probes.Case{Name: cas, Required: required, Proved: attacked.Proved(cas), Attempted: len(attacked.Tried(cas)) > 0,
		WitnessAlive: attacked.errs[cas] == nil && attacked.checked[cas] == nil}
	switch {
	case attacked.errs[cas] != nil:
		c.Doubt = "the witness could not look: " + attacked.errs[cas].Error()
	case attacked.checked[cas] != nil:
		c.Doubt = "the witness failed the host's own test: " + attacked.checked[cas].Error()
	case control.errs[cas] != nil:
		c.Doubt = "the control's witness could not look: " + control.errs[cas].Error()
	}
	return c
}

// crossed says whether the host saw that the way led to its canary, and how.
func crossed(cas string, s sighting) (bool, string) {
	st := s.states[cas]
	if s.errs[cas] != nil {
		st = canary.State{Alive: true} // not looked at is not harmed
	}
	how := s.leaks[cas]
	switch cas {
	case attack.ProcVisible, attack.ProcVMRead, attack.ProcGetfd:
		if how != "" {
			return true, "a secret of the canary process came out (" + how + ")"
		}
		// Their canary is the tracer's too; a mark on it is his.
	default:
		if st.Harmed() {
			return true, "the canary process " + st.String()
		}
	}
	return false, "the canary process is " + st.String()
}

// finish adds the doubt about a claim that no witness confirms.
func finish(c probes.Case, attacked sighting) probes.Case {
	if c.Crossed {
		return c
	}
	if c.Doubt == "" && c.NotTested == "" && attacked.Claimed(c.Name) {
		c.Doubt = "the guest claims a success that no witness on the host saw"
	}
	if c.Name == attack.ProcSetns || c.Name == attack.ProcShm || c.Name == attack.ProcTTY {
		c.Witness = "nothing of it was seen on the host"
	}
	if why := attacked.Impossible(c.Name); why != "" && !c.Required && c.Doubt == "" {
		c.NotTested = why
	}
	return c
}
