package cli

import (
	"cmp"
	"slices"

	"github.com/brainst0rm/sandbox-redteam/internal/actions"
	"github.com/brainst0rm/sandbox-redteam/internal/gate"
)

// gravity orders the kinds of reasons, the worst first.
var gravity = []gate.Kind{
	gate.KindStopped, gate.KindMissing, gate.KindFailed, gate.KindRegression, gate.KindState, gate.KindMockOnly,
	gate.KindErrored, gate.KindEmpty, gate.KindSkipped, gate.KindLeaks, gate.KindBaseline, gate.KindWeak, gate.KindMock, gate.KindAccepted,
}

// annotations are the reasons and warnings, the worst first. That the run was one
// of the mock is always among those that the runner keeps.
func annotations(d gate.Decision, policy string) []actions.Annotation {
	reasons, warnings := slices.Clone(d.Reasons), slices.Clone(d.Warnings)
	slices.SortStableFunc(reasons, worseFirst)
	slices.SortStableFunc(warnings, worseFirst)
	var list []actions.Annotation
	level := actions.Error
	if d.OK {
		level = actions.Notice
	}
	for _, r := range reasons {
		list = append(list, annotation(level, r, policy))
	}
	var mock []actions.Annotation
	for _, w := range warnings {
		a := annotation(actions.Warning, w, policy)
		if w.Kind == gate.KindMock {
			mock = append(mock, a)
			continue
		}
		list = append(list, a)
	}
	return actions.Bounded(list, mock)
}

func annotation(level actions.Level, r gate.Reason, policy string) actions.Annotation {
	title := "bsm-redteam: " + string(r.Kind)
	if r.Probe != "" {
		title = "bsm-redteam: " + r.Probe
	}
	return actions.Annotation{Level: level, Title: title, Message: r.Text, File: policy}
}

func worseFirst(a, b gate.Reason) int {
	if c := cmp.Compare(slices.Index(gravity, a.Kind), slices.Index(gravity, b.Kind)); c != 0 {
		return c
	}
	switch {
	case a.Severity == b.Severity:
		return 0
	case a.Severity == "":
		return 1
	case b.Severity == "" || a.Severity.AtLeast(b.Severity):
		return -1
	}
	return 1
}
