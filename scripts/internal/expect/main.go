// Command expect fails unless a use of the action ended as a workflow expects.
// It reads what the workflow saw: $OUTCOME, the step's outcome, and $OUTPUTS, its
// outputs as JSON.
//
//	expect [--probe NAME=VERDICT]... [--accelerator kvm] NAME=VALUE NAME!=VALUE...
//
// A NAME is "outcome" or an output. Where there is a report, its counts must be
// those of the outputs.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("OUTCOME"), os.Getenv("OUTPUTS")); err != nil {
		fmt.Fprintln(os.Stderr, "expect:", err)
		os.Exit(1)
	}
	fmt.Println("ended as expected:", strings.Join(os.Args[1:], " "))
}

// expectations are what the arguments ask for.
type expectations struct {
	fields      []string
	probes      map[string]string
	accelerator string
}

func parse(args []string) (expectations, error) {
	e := expectations{probes: map[string]string{}}
	f := flag.NewFlagSet("expect", flag.ContinueOnError)
	f.StringVar(&e.accelerator, "accelerator", "", "what the virtual machine ran on")
	f.Func("probe", "NAME=VERDICT in the report", func(s string) error {
		name, verdict, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("not of the form NAME=VERDICT")
		}
		e.probes[name] = verdict
		return nil
	})
	if err := f.Parse(args); err != nil {
		return e, err
	}
	e.fields = f.Args()
	if len(e.fields) == 0 {
		return e, errors.New("nothing is expected, so nothing would be checked")
	}
	return e, nil
}

func run(args []string, outcome, outputs string) error {
	e, err := parse(args)
	if err != nil {
		return err
	}
	seen := map[string]string{}
	if err := json.Unmarshal([]byte(outputs), &seen); err != nil {
		return fmt.Errorf("read $OUTPUTS: %w", err)
	}
	seen["outcome"] = outcome
	errs := []error{checkFields(e.fields, seen)}
	if path := seen["report-json"]; path != "" {
		r, err := report.ReadFile(path)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, checkCounts(r, seen), checkReport(r, e))
	} else if len(e.probes) > 0 || e.accelerator != "" {
		errs = append(errs, errors.New("there is no report, but something is expected of it"))
	}
	return errors.Join(errs...)
}

func checkFields(fields []string, seen map[string]string) error {
	var errs []error
	for _, field := range fields {
		name, want, ok := strings.Cut(field, "=")
		name, not := strings.CutSuffix(name, "!")
		got, known := seen[name]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%q is neither NAME=VALUE nor NAME!=VALUE", field))
		case !known:
			errs = append(errs, fmt.Errorf("there is no output %s", name))
		case (got == want) == not:
			errs = append(errs, fmt.Errorf("expected %s, but %s is %q", field, name, got))
		}
	}
	return errors.Join(errs...)
}

// checkCounts compares the numbers that a workflow sees with the report's.
func checkCounts(r probes.Report, seen map[string]string) error {
	mock := 0
	for _, p := range r.Probes {
		if p.ValidatedAgainst == probes.MockOnly {
			mock++
		}
	}
	var errs []error
	for name, n := range map[string]int{"passed": r.Summary.Passed, "failed": r.Summary.Failed, "errored": r.Summary.Errored,
		"skipped": r.Summary.Skipped, "mock-only": mock} {
		if seen[name] != strconv.Itoa(n) {
			errs = append(errs, fmt.Errorf("output %s is %q, the report says %d", name, seen[name], n))
		}
	}
	return errors.Join(errs...)
}

func checkReport(r probes.Report, e expectations) error {
	verdicts := map[string]string{}
	for _, p := range r.Probes {
		verdicts[p.Name] = string(p.Verdict)
	}
	var errs []error
	for name, want := range e.probes {
		if verdicts[name] != want {
			errs = append(errs, fmt.Errorf("expected %s to be %s, but it is %q", name, want, verdicts[name]))
		}
	}
	if e.accelerator == "" {
		return errors.Join(errs...)
	}
	got := ""
	if r.Environment != nil && r.Environment.Sandbox != nil {
		got = r.Environment.Sandbox.Accelerator
	}
	if got != e.accelerator {
		errs = append(errs, fmt.Errorf("expected accelerator %s, but it is %q", e.accelerator, got))
	}
	return errors.Join(errs...)
}
