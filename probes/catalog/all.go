package catalog

import (
	"github.com/brainst0rm/sandbox-redteam/probes"
	"github.com/brainst0rm/sandbox-redteam/probes/egress"
	"github.com/brainst0rm/sandbox-redteam/probes/exhaust"
	"github.com/brainst0rm/sandbox-redteam/probes/framepoison"
	"github.com/brainst0rm/sandbox-redteam/probes/fsescape"
	"github.com/brainst0rm/sandbox-redteam/probes/latency"
	"github.com/brainst0rm/sandbox-redteam/probes/procescape"
	"github.com/brainst0rm/sandbox-redteam/probes/stdoutforge"
	"github.com/brainst0rm/sandbox-redteam/probes/substrate"
	"github.com/brainst0rm/sandbox-redteam/probes/timebomb"
)

// All returns every probe in the order of the battery all: the attacks with
// P-A6 last among them, since it leaves the sandbox failed by design, then the
// latencies.
func All() []probes.Probe {
	return append([]probes.Probe{
		egress.New(),
		fsescape.New(),
		procescape.New(),
		exhaust.New(),
		timebomb.New(),
		stdoutforge.New(),
		framepoison.New(),
		substrate.New(),
	}, latency.New()...)
}
