package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

// MaxFile bounds a report that is read.
const MaxFile = 64 << 20

// ReadFile reads and checks a report.
func ReadFile(path string) (probes.Report, error) {
	r, _, err := ReadFileBytes(path)
	return r, err
}

// ReadFileBytes reads and checks a report, and returns the file's bytes too.
func ReadFileBytes(path string) (probes.Report, []byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return probes.Report{}, nil, fmt.Errorf("read report: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return probes.Report{}, nil, fmt.Errorf("read report: %w", err)
	}
	r, err := Read(b)
	if err != nil {
		return probes.Report{}, nil, fmt.Errorf("report %s: %w", path, err)
	}
	return r, b, nil
}

// Read decodes a report and refuses one that is not whole: of another schema,
// with unknown or repeated keys, or with counts that do not add up. What it
// returns can be reasoned about; a report that it refuses proves nothing.
func Read(b []byte) (probes.Report, error) {
	if len(b) > MaxFile {
		return probes.Report{}, fmt.Errorf("larger than %d bytes", MaxFile)
	}
	if err := singleKeys(b); err != nil {
		return probes.Report{}, err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(b, &keys); err != nil {
		return probes.Report{}, fmt.Errorf("not a report: %w", err)
	}
	var version string
	if err := json.Unmarshal(keys["schema_version"], &version); err != nil || version != probes.SchemaVersion {
		return probes.Report{}, fmt.Errorf("schema_version is %q, this program reads %q", wire.Escape([]byte(version)), probes.SchemaVersion)
	}
	for _, k := range []string{"generated_at", "backend", "final_sandbox_state", "probes", "latency", "summary", "notes"} {
		if v, ok := keys[k]; !ok || string(v) == "null" {
			return probes.Report{}, fmt.Errorf("%s is missing", k)
		}
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var r probes.Report
	if err := dec.Decode(&r); err != nil {
		return probes.Report{}, fmt.Errorf("not a report: %w", err)
	}
	return r, check(r)
}

func check(r probes.Report) error {
	if _, err := time.Parse(time.RFC3339, r.GeneratedAt); err != nil {
		return fmt.Errorf("generated_at is no time: %w", err)
	}
	if r.Backend == "" {
		return errors.New("backend is empty")
	}
	states := []backends.State{backends.StateNotBooted, backends.StateBooting, backends.StateReady, backends.StateResetting, backends.StateFailed}
	if !slices.Contains(states, r.FinalSandboxState) {
		return fmt.Errorf("final_sandbox_state %q is unknown", wire.Escape([]byte(r.FinalSandboxState)))
	}
	s := r.Summary
	for _, n := range []int{s.Total, s.Passed, s.Failed, s.Errored, s.Skipped} {
		if n < 0 {
			return errors.New("summary has a negative count")
		}
	}
	if s.Passed+s.Failed+s.Errored+s.Skipped != s.Total {
		return fmt.Errorf("summary does not add up: %d+%d+%d+%d is not %d", s.Passed, s.Failed, s.Errored, s.Skipped, s.Total)
	}
	counted := probes.Summarise(r.Probes, r.SkippedProbes)
	if counted.Passed != s.Passed || counted.Failed != s.Failed || counted.Errored != s.Errored {
		return fmt.Errorf("summary says %d passed, %d failed, %d errored; its probes are %d, %d, %d", s.Passed, s.Failed, s.Errored, counted.Passed, counted.Failed, counted.Errored)
	}
	if len(r.SkippedProbes) > 0 && len(r.SkippedProbes) != s.Skipped {
		return fmt.Errorf("summary says %d skipped, but %d are listed", s.Skipped, len(r.SkippedProbes))
	}
	if err := checkProbes(r); err != nil {
		return err
	}
	return checkMerged(r)
}

// checkMerged: what names several backends says which runs it came from, and
// accounts for every probe exactly once. Only such a report can claim that a
// probe was validated on both VMMs.
func checkMerged(r probes.Report) error {
	from := map[string]int{}
	for _, m := range r.MergedFrom {
		if m.Backend == "" {
			return errors.New("merged_from has a run without a backend")
		}
		for _, name := range m.Probes {
			from[probes.Qualified(m.Backend, name)]++
		}
	}
	for _, s := range r.SkippedProbes {
		backend := s.Backend
		if backend == "" {
			backend = r.Backend
		}
		if n := from[probes.Qualified(backend, s.Name)]; len(r.MergedFrom) > 0 && n != 1 {
			return fmt.Errorf("skipped probe %q of %q comes from %d of the merged runs", wire.Escape([]byte(s.Name)), wire.Escape([]byte(backend)), n)
		}
	}
	held := map[string]bool{}
	for _, p := range r.Probes {
		if len(r.MergedFrom) == 0 && (p.Backend != "" || p.ValidatedAgainst == probes.ValidatedBoth) {
			return fmt.Errorf("probe %q is of a merged report, but merged_from is missing", wire.Escape([]byte(p.Name)))
		}
		id := probes.Qualified(r.BackendOf(p), p.Name)
		if len(r.MergedFrom) > 0 && from[id] != 1 {
			return fmt.Errorf("probe %q of %q comes from %d of the merged runs", wire.Escape([]byte(p.Name)), wire.Escape([]byte(r.BackendOf(p))), from[id])
		}
		held[id] = p.Passed && p.ValidatedAgainst == probes.ValidatedBoth
	}
	for _, p := range r.Probes {
		if p.ValidatedAgainst == probes.ValidatedBoth && (!held[probes.Qualified("chv", p.Name)] || !held[probes.Qualified("vf", p.Name)]) {
			return fmt.Errorf("probe %q is %s, but did not pass on both", wire.Escape([]byte(p.Name)), probes.ValidatedBoth)
		}
	}
	return nil
}

func checkProbes(r probes.Report) error {
	seen := map[string]bool{}
	for _, p := range r.Probes {
		id := p.Backend + "/" + p.Name
		switch {
		case p.Name == "":
			return errors.New("a probe has no name")
		case p.DurationMS < 0:
			return fmt.Errorf("probe %q took %d ms", wire.Escape([]byte(p.Name)), p.DurationMS)
		case seen[id]:
			return fmt.Errorf("probe %q is listed twice", wire.Escape([]byte(p.Name)))
		case p.ValidatedAgainst != probes.MockOnly && !strings.HasPrefix(p.ValidatedAgainst, "validated-"):
			return fmt.Errorf("validated_against %q is unknown", wire.Escape([]byte(p.ValidatedAgainst)))
		case p.Errored && p.Passed:
			return fmt.Errorf("probe %q is both passed and errored", wire.Escape([]byte(p.Name)))
		case p.Passed && p.Verdict != "" && p.Verdict != probes.Contained && p.Verdict != probes.Weak:
			return fmt.Errorf("probe %q passed with the verdict %q", wire.Escape([]byte(p.Name)), wire.Escape([]byte(p.Verdict)))
		}
		seen[id] = true
	}
	for _, s := range r.SkippedProbes {
		id := s.Backend + "/" + s.Name
		if s.Name == "" || seen[id] {
			return fmt.Errorf("skipped probe %q has no name or is listed twice", wire.Escape([]byte(s.Name)))
		}
		seen[id] = true
	}
	return nil
}

// maxDepth bounds how deep values are nested in a report. Evidence of our own
// stays below ten.
const maxDepth = 1000

// singleKeys refuses an object with a repeated key at any depth, and anything
// after the document: two readers could disagree about such a report.
func singleKeys(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	type level struct {
		object, value bool
		seen          map[string]bool
	}
	var stack []level
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) && len(stack) == 0 {
			return errors.New("empty")
		}
		if err != nil {
			return fmt.Errorf("not JSON: %w", err)
		}
		top := len(stack) - 1
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			stack = stack[:top]
		} else {
			if top >= 0 && stack[top].object && !stack[top].value {
				name, _ := tok.(string)
				folded := fold(name)
				if stack[top].seen[folded] {
					return fmt.Errorf("key %q appears twice", wire.Escape([]byte(name)))
				}
				stack[top].seen[folded], stack[top].value = true, true
				continue
			}
			if ok {
				if len(stack) == maxDepth {
					return fmt.Errorf("values are nested more than %d deep", maxDepth)
				}
				stack = append(stack, level{object: d == '{', seen: map[string]bool{}})
				continue
			}
		}
		if len(stack) == 0 {
			break
		}
		stack[len(stack)-1].value = false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after the report")
	}
	return nil
}

// fold maps the names that encoding/json takes for the same field to one: it
// compares them by Unicode's simple folding, in which a long s is an S.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, name)
}
