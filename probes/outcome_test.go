package probes

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func genCase(t *rapid.T, i int) Case {
	// Mostly sound, so that what one missing fact does is not hidden by others.
	mostly := func(name string) bool { return rapid.IntRange(0, 5).Draw(t, name) > 0 }
	b := func(name string) bool { return rapid.IntRange(0, 5).Draw(t, name) == 0 }
	c := Case{Name: string(rune('a' + i)), Required: rapid.Bool().Draw(t, "required"), Proved: mostly("proved"), Controlled: mostly("controlled"),
		WitnessAlive: mostly("alive"), Crossed: b("crossed"), Attempted: mostly("attempted")}
	if b("doubt") {
		c.Doubt = "doubt"
	}
	if b("missing") {
		c.Missing = "no limit"
	}
	if b("untested") {
		c.NotTested = "not here"
	}
	return c
}

func genOutcome(t *rapid.T) Outcome {
	n := rapid.IntRange(0, 6).Draw(t, "n")
	var o Outcome
	for i := range n {
		o.Cases = append(o.Cases, genCase(t, i))
	}
	return o
}

// The law of verdicts, over all combinations of facts.
func TestJudgeLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := genOutcome(t)
		o.Judge(SeverityHigh)
		crossed, requiredSound, sound, missing := false, true, 0, false
		for _, c := range o.Cases {
			crossed = crossed || c.Crossed
			full := c.Proved && c.Controlled && c.WitnessAlive && c.Attempted && c.Doubt == "" && c.NotTested == ""
			if (c.Required || c.Doubt != "") && !full {
				requiredSound = false
			}
			if full {
				sound++
				missing = missing || c.Missing != ""
			}
		}
		switch {
		case crossed:
			require.Equal(t, Escaped, o.Verdict, "a crossing that the host saw always counts")
		case !requiredSound || sound == 0:
			require.Equal(t, Inconclusive, o.Verdict, "without proof, control and witness there is no pass")
		case missing:
			require.Equal(t, Weak, o.Verdict)
		default:
			require.Equal(t, Contained, o.Verdict)
		}
		require.NotEmpty(t, o.Reason)
		require.Equal(t, o.Verdict == Escaped || o.Verdict == Weak, o.Severity != "", "exactly findings have a severity")
	})
}

// Taking any one fact away from a contained outcome makes it anything but
// contained, also where another sub-case is sound.
func TestNothingCanBeLeftOut(t *testing.T) {
	sound := Case{Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true}
	full := func() Outcome { return Outcome{Cases: []Case{sound, sound}} }
	o := full()
	o.Judge(SeverityHigh)
	require.Equal(t, Contained, o.Verdict)
	for name, take := range map[string]func(*Case){
		"proof":   func(c *Case) { c.Proved = false },
		"control": func(c *Case) { c.Controlled = false },
		"witness": func(c *Case) { c.WitnessAlive = false },
		"attempt": func(c *Case) { c.Attempted = false },
		"doubt":   func(c *Case) { c.Doubt = "a visit without a token" },
		"doubt of an optional one": func(c *Case) {
			c.Doubt, c.Required = "a visit without a token", false
		},
		"doubt of one that was not tested": func(c *Case) {
			c.Doubt, c.NotTested, c.Required = "a claim that nothing confirms", "not here", false
		},
		"test of a required one": func(c *Case) { c.NotTested = "not here" },
	} {
		o := full()
		take(&o.Cases[0])
		o.Judge(SeverityHigh)
		require.Equal(t, Inconclusive, o.Verdict, name)
	}
}

// A sub-case without an answer is listed with its reason, whatever its cause.
func TestNotTestedIsListed(t *testing.T) {
	o := Outcome{Cases: []Case{
		{Name: "sound", Required: true, Proved: true, Controlled: true, WitnessAlive: true, Attempted: true},
		{Name: "uncontrolled", Proved: true, WitnessAlive: true, Attempted: true},
		{Name: "untried", Proved: true, Controlled: true, WitnessAlive: true},
		{Name: "yama", NotTested: "Yama forbids it to the control as well"},
	}}
	o.Judge(SeverityHigh)
	require.Equal(t, Contained, o.Verdict)
	require.Equal(t, []NotTested{
		{"uncontrolled", "no control on this host"},
		{"untried", "the payload's list shows no attempt"},
		{"yama", "Yama forbids it to the control as well"},
	}, o.NotTested)
}

func TestJudgeIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := genOutcome(t)
		o.Judge(SeverityLow)
		once := o.Verdict
		o.Judge(SeverityLow)
		require.Equal(t, once, o.Verdict)
	})
}

func TestSeverityOrder(t *testing.T) {
	all := Severities()
	for i, a := range all {
		for j, b := range all {
			require.Equal(t, i >= j, a.AtLeast(b), "%s %s", a, b)
		}
	}
	require.True(t, Severity("typo").AtLeast(SeverityCritical), "an unknown severity must not vanish")
}
