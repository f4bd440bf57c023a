package fsescape

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// soundView is a run in which every sub-case was proven, controlled and
// contained.
func soundView() view {
	var proof, crossed, held []wire.Attempt
	control, attacked := canary.NewToken(), canary.NewToken()
	for _, name := range []string{attack.FSAbsolute, attack.FSTraversal, attack.FSProcRoot, attack.FSInherited, attack.FSHandle, attack.FSMounts, attack.FSWrite,
		attack.FSEnviron, attack.FSBlockScan, attack.FSDiskWrite, attack.FSSocket, attack.FSKnownSock, attack.FSDevMem} {
		proof = append(proof, wire.Attempt{Case: name, Result: wire.ResultOK})
		crossed = append(crossed, wire.Attempt{Case: name, Result: wire.ResultOK, Data: []byte(control)})
		held = append(held, wire.Attempt{Case: name, Result: wire.ResultDenied, Errno: "EACCES"})
	}
	return view{
		control: trial{Trial: canary.Trial{Report: &wire.PayloadReport{Proof: proof, Attempts: crossed}}, access: canary.Access{Opened: true, Read: true, Modified: true},
			fileLeak: "raw", envLeak: "raw", imageLeak: "raw", disk: diskResult{files: 1, hit: "hit"}, socket: true},
		attack:        trial{Trial: canary.Trial{Report: &wire.PayloadReport{Proof: proof, Attempts: held}}, disk: diskResult{files: 1}},
		controlSecret: control, attackSecret: attacked, imagesKnown: true,
	}
}

func judged(v view, name string) (probes.Case, probes.Verdict) {
	o := probes.Outcome{Cases: cases(v)}
	o.Judge(probes.SeverityCritical)
	i := slices.IndexFunc(o.Cases, func(c probes.Case) bool { return c.Name == name })
	return o.Cases[i], o.Verdict
}

func TestASoundViewIsContained(t *testing.T) {
	o := probes.Outcome{Cases: cases(soundView())}
	o.Judge(probes.SeverityCritical)
	require.Equal(t, probes.Contained, o.Verdict, o.Reason)
	require.Empty(t, o.NotTested)
}

// Each fact that the host holds changes the answer of its sub-case by itself.
func TestEveryFactCounts(t *testing.T) {
	dead := errors.New("dead")
	for name, tc := range map[string]struct {
		change func(*view)
		cas    string
		want   probes.Verdict // of the sub-case
		all    probes.Verdict // of the probe
	}{
		"secret came out, watch saw nothing": {func(v *view) { v.attack.fileLeak = "base64" }, caseCanary, probes.Escaped, probes.Escaped},
		"watch saw an access":                {func(v *view) { v.attack.access.Opened = true }, caseCanary, probes.Escaped, probes.Escaped},
		"file was moved":                     {func(v *view) { v.attack.access.Moved = true }, caseCanary, probes.Escaped, probes.Escaped},
		"file was changed":                   {func(v *view) { v.attack.access.Modified = true }, attack.FSWrite, probes.Escaped, probes.Escaped},
		"kernel dropped events":              {func(v *view) { v.attack.access.Overflow = true }, caseCanary, probes.Inconclusive, probes.Inconclusive},
		"watch cannot be read":               {func(v *view) { v.attack.lookErr = dead }, caseCanary, probes.Inconclusive, probes.Inconclusive},
		"watch is dead":                      {func(v *view) { v.aHealth.secret = dead }, caseCanary, probes.Inconclusive, probes.Inconclusive},
		"control's watch was dead":           {func(v *view) { v.cHealth.secret = dead }, attack.FSAbsolute, probes.Inconclusive, probes.Inconclusive},
		"control did not read":               {func(v *view) { v.control.access.Read = false }, caseCanary, probes.Inconclusive, probes.Inconclusive},
		"control did not write":              {func(v *view) { v.control.access.Modified = false }, attack.FSWrite, probes.Inconclusive, probes.Inconclusive},
		"environment came out":               {func(v *view) { v.attack.envLeak = "raw" }, attack.FSEnviron, probes.Escaped, probes.Escaped},
		"control's environment did not":      {func(v *view) { v.control.envLeak = "" }, attack.FSEnviron, probes.Inconclusive, probes.Inconclusive},
		"image has what was written inside":  {func(v *view) { v.attack.disk.hit = "hit" }, attack.FSDiskWrite, probes.Escaped, probes.Escaped},
		"image cannot be searched":           {func(v *view) { v.attack.disk.err = dead }, attack.FSDiskWrite, probes.Inconclusive, probes.Inconclusive},
		"control's write did not show":       {func(v *view) { v.control.disk.hit = "" }, attack.FSDiskWrite, probes.Skipped, probes.Contained},
		"socket was reached":                 {func(v *view) { v.attack.socket = true }, attack.FSSocket, probes.Escaped, probes.Escaped},
		"a stranger at the socket":           {func(v *view) { v.attack.strangers = 1 }, attack.FSSocket, probes.Inconclusive, probes.Inconclusive},
		"socket canary is dead":              {func(v *view) { v.aHealth.socket = dead }, attack.FSSocket, probes.Inconclusive, probes.Inconclusive},
		"control's secret is another":        {func(v *view) { v.controlSecret = canary.NewToken() }, attack.FSTraversal, probes.Inconclusive, probes.Inconclusive},
	} {
		t.Run(name, func(t *testing.T) {
			v := soundView()
			tc.change(&v)
			c, all := judged(v, tc.cas)
			require.Equal(t, tc.want, c.Verdict, "%+v", c)
			require.Equal(t, tc.all, all)
		})
	}
}
