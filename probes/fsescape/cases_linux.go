package fsescape

import (
	"fmt"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// caseCanary is what the watch on the file shows, whatever way led there and
// whatever the guest says of it.
const caseCanary = "canary-file"

// view is what the cases are judged from.
type view struct {
	control, attack  trial
	cHealth, aHealth health
	controlSecret    string
	attackSecret     string
	machine          bool
	imagesKnown      bool
}

func cases(v view) []probes.Case {
	out := []probes.Case{v.canary()}
	for _, way := range []struct {
		name     string
		required bool
	}{{attack.FSAbsolute, true}, {attack.FSTraversal, true}, {attack.FSProcRoot, true}, {attack.FSMounts, true}, {attack.FSInherited, false}, {attack.FSHandle, false}} {
		c := v.begin(way.name, way.required, v.cHealth.secret, v.aHealth.secret)
		c.Controlled = leakedBy(v.control, way.name, v.controlSecret)
		c.Crossed = leakedBy(v.attack, way.name, v.attackSecret)
		out = append(out, v.finish(c, "the canary's secret came out this way"))
	}
	return append(out, v.write(), v.environ(), v.blockScan(), v.diskWrite(), v.socket(), v.knownSockets(), v.devMem())
}

// begin fills in what all sub-cases share. cErr and aErr say whether the
// witnesses of the control and of the attack still see.
func (v view) begin(name string, required bool, cErr, aErr error) probes.Case {
	c := probes.Case{Name: name, Required: required, Proved: v.attack.Proved(name), Attempted: len(v.attack.Tried(name)) > 0, WitnessAlive: aErr == nil}
	switch {
	case aErr != nil:
		c.Doubt = "the witness does not see: " + aErr.Error()
	case cErr != nil:
		c.Doubt = "the control's witness does not see: " + cErr.Error()
	}
	return c
}

// finish adds the doubt about a claim that no witness confirms.
func (v view) finish(c probes.Case, how string) probes.Case {
	switch {
	case c.Crossed:
		c.Witness = how
	case c.Doubt == "" && v.attack.Claimed(c.Name):
		c.Doubt = "the guest claims a success that no witness on the host saw"
	default:
		c.Witness = "nothing of it was seen on the host"
	}
	if why := v.attack.Impossible(c.Name); why != "" && !c.Required && c.Doubt == "" {
		c.NotTested = why
	}
	return c
}

// leakedBy reports whether the data of the attempts of one way hold the secret.
func leakedBy(t trial, name, secret string) bool {
	if t.fileLeak == "" {
		return false
	}
	for _, a := range t.Tried(name) {
		if canary.Leaked(secret, a.Data) != "" {
			return true
		}
	}
	return false
}

func (v view) canary() probes.Case {
	c := v.begin(caseCanary, true, v.cHealth.secret, v.aHealth.secret)
	c.Proved, c.Attempted = v.attack.Proved(attack.FSAbsolute), len(v.attack.Tried(attack.FSAbsolute)) > 0
	c.Controlled = v.control.fileLeak != "" && v.control.access.Opened && v.control.access.Read && v.control.access.Modified
	c.Crossed = v.attack.fileLeak != "" || v.attack.access.Any()
	switch {
	case v.attack.fileLeak != "":
		c.Witness = "the secret came out (" + v.attack.fileLeak + ")"
	case c.Crossed:
		c.Witness = "the host's watch saw the file " + v.attack.access.String()
	case c.Doubt == "" && v.attack.lookErr != nil:
		c.Doubt = "the watch could not be read: " + v.attack.lookErr.Error()
	case c.Doubt == "" && v.attack.access.Overflow:
		c.Doubt = "the kernel dropped events of the watch"
	default:
		c.Witness = "secret in no output, file untouched"
	}
	return c
}

func (v view) write() probes.Case {
	c := v.begin(attack.FSWrite, true, v.cHealth.secret, v.aHealth.secret)
	c.Controlled = v.control.access.Modified && v.control.Claimed(attack.FSWrite)
	c.Crossed = v.attack.access.Modified
	return v.finish(c, "the canary's digest changed")
}

func (v view) environ() probes.Case {
	// Without a canary process on this host the planted variable alone has no
	// control.
	c := v.begin(attack.FSEnviron, true, v.cHealth.proc, v.aHealth.proc)
	c.Controlled = v.control.envLeak != ""
	c.Crossed = v.attack.envLeak != ""
	return v.finish(c, "a secret of a host process's environment came out")
}

func (v view) blockScan() probes.Case {
	c := v.begin(attack.FSBlockScan, false, nil, nil)
	c.Controlled, c.Crossed = v.control.imageLeak != "", v.attack.imageLeak != "" || leakedBy(v.attack, attack.FSBlockScan, v.attackSecret)
	c = v.finish(c, "the secret came out of a raw device")
	if v.attack.Report != nil && !v.machine {
		for fact := range v.attack.Report.Facts {
			if strings.HasPrefix(fact, attack.FactReadable) {
				c.Missing, c.Severity = "block devices can be read from inside", probes.SeverityHigh
			}
		}
	}
	return c
}

func (v view) diskWrite() probes.Case {
	c := v.begin(attack.FSDiskWrite, false, nil, nil)
	if !v.imagesKnown {
		c.NotTested = "the backend does not name its image files"
		return c
	}
	c.Severity = probes.SeverityHigh
	c.Controlled, c.Crossed = v.control.disk.hit != "", v.attack.disk.hit != ""
	switch {
	case c.Crossed:
		c.Witness = v.attack.disk.hit
	case v.attack.disk.err != nil:
		c.Doubt = v.attack.disk.err.Error()
	default:
		c.Witness = fmt.Sprintf("%d image files do not hold what was written inside", v.attack.disk.files)
	}
	return c
}

func (v view) socket() probes.Case {
	c := v.begin(attack.FSSocket, false, v.cHealth.socket, v.aHealth.socket)
	c.Controlled, c.Crossed = v.control.socket, v.attack.socket
	if v.attack.strangers > 0 && c.Doubt == "" {
		c.Doubt = fmt.Sprintf("the canary socket had %d visits without a token", v.attack.strangers)
	}
	return v.finish(c, "the canary socket received the token of this run")
}

// knownSockets is posture: a runtime's socket is connected to and left alone.
func (v view) knownSockets() probes.Case {
	c := v.begin(attack.FSKnownSock, false, v.cHealth.socket, v.aHealth.socket)
	c.Proved, c.Controlled = v.attack.Proved(attack.FSSocket), v.control.socket
	c.Witness = "posture: connect() only"
	if v.attack.Claimed(attack.FSKnownSock) && !v.machine {
		c.Missing, c.Severity = "a container runtime's or system daemon's socket accepts connections from inside", probes.SeverityCritical
	}
	return c
}

// devMem is posture: the device is opened and nothing is read.
func (v view) devMem() probes.Case {
	c := v.begin(attack.FSDevMem, false, nil, nil)
	c.Controlled = v.control.Claimed(attack.FSDevMem)
	c.Witness = "posture: open() only"
	if v.machine {
		c.Witness += ", of the guest's own memory"
		return c
	}
	for _, a := range v.attack.Tried(attack.FSDevMem) {
		if a.Result == wire.ResultOK {
			c.Missing, c.Severity = "the machine's memory device opens from inside", probes.SeverityCritical
		}
	}
	return c
}
