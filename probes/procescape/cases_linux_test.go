package procescape

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

func reported() canary.Trial {
	ok := []wire.Attempt{{Case: attack.ProcVMRead, Result: wire.ResultOK}}
	return canary.Trial{Report: &wire.PayloadReport{Proof: ok, Attempts: []wire.Attempt{{Case: attack.ProcVMRead, Result: wire.ResultDenied}}, Facts: map[string]string{attack.ProcFilter: "2"}}}
}

// A witness that could not look leaves a doubt, also about an optional way.
func TestAWitnessThatCannotLookLeavesADoubt(t *testing.T) {
	dead := map[string]error{attack.ProcVMRead: errors.New("dead")}
	for name, tc := range map[string]struct{ control, attacked sighting }{
		"attack, look":  {sighting{}, sighting{errs: dead}},
		"attack, test":  {sighting{}, sighting{checked: dead}},
		"control, look": {sighting{errs: dead}, sighting{}},
	} {
		tc.attacked.Trial = reported()
		require.Contains(t, begin(attack.ProcVMRead, false, tc.control, tc.attacked).Doubt, "dead", name)
	}
	require.Empty(t, begin(attack.ProcVMRead, false, sighting{}, sighting{Trial: reported()}).Doubt)
}

// Where the harness itself is filtered the control shows nothing, and a filter
// that the host cannot read is no filter that it saw.
func TestFilterIsReadByTheHost(t *testing.T) {
	seen := sighting{Trial: reported(), filter: "2"}
	require.True(t, filter(sighting{filter: "0"}, seen).Controlled)
	require.False(t, filter(sighting{filter: "2"}, seen).Controlled)
	require.False(t, filter(sighting{filter: "0", filterErr: errOwnKernel}, seen).Controlled)

	require.NotEmpty(t, filter(sighting{filter: "0"}, sighting{Trial: reported(), filter: "0"}).Missing)
	none := filter(sighting{filter: "0"}, sighting{Trial: reported(), filterErr: errOwnKernel})
	require.NotEmpty(t, none.NotTested)
	require.Empty(t, none.Doubt)
	unread := filter(sighting{filter: "0"}, sighting{Trial: reported(), filterErr: errors.New("no /proc")})
	require.Contains(t, unread.Doubt, "no /proc")
	require.False(t, unread.WitnessAlive)
}

// What woke a canary and left no other mark is not passed over.
func TestAWokenCanaryIsADoubt(t *testing.T) {
	none := errors.New("none here")
	p := &pen{shmErr: none, ttyErr: none}
	asleep, woken := map[string]canary.State{}, map[string]canary.State{}
	for _, cas := range attack.ProcOnCanary() {
		asleep[cas], woken[cas] = canary.State{Alive: true}, canary.State{Alive: true, Woken: true}
	}
	doubts := func(states map[string]canary.State) (n int) {
		for _, c := range cases(p, p, sighting{states: asleep}, sighting{Trial: reported(), states: states}) {
			if c.Doubt != "" {
				n++
			}
		}
		return n
	}
	require.Zero(t, doubts(asleep))
	require.Equal(t, len(attack.ProcOnCanary()), doubts(woken))
}
