// Command testsummary reads the output of `go test -json`, prints one line per
// package, everything that a failed test said, every skip with its reason, and
// the totals. It exits 1 if anything failed or if no test ran at all: an empty
// run is not a green one.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// event is a line of test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

func main() {
	s, err := summarize(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
		os.Exit(1)
	}
	if !s.green() {
		os.Exit(1)
	}
}

// summary counts tests; subtests count, as go test itself reports them.
type summary struct {
	passed, failed, skipped, packages int
	skips                             []string
	failures                          []string
	unfinished                        map[string]bool
}

func (s *summary) green() bool { return s.failed == 0 && len(s.failures) == 0 && s.passed > 0 }

func summarize(in io.Reader, out io.Writer) (*summary, error) {
	s := &summary{unfinished: map[string]bool{}}
	said := map[string]*strings.Builder{}
	lines := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(line, said, out)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	for name := range s.unfinished {
		s.failures = append(s.failures, name+" (never finished)")
	}
	s.print(out)
	return s, nil
}

func (s *summary) line(line string, said map[string]*strings.Builder, out io.Writer) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
		fmt.Fprint(out, line) // what the go command says outside of tests
		return
	}
	name := e.Package
	if e.Test != "" {
		name += "." + e.Test
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(out, e.Output)
	case "build-fail":
		s.failures = append(s.failures, e.ImportPath+" (does not build)")
	case "start", "run":
		s.unfinished[name] = true
	case "output":
		if said[name] == nil {
			said[name] = &strings.Builder{}
		}
		said[name].WriteString(e.Output)
	case "pass", "fail", "skip":
		delete(s.unfinished, name)
		text := ""
		if b := said[name]; b != nil {
			text = b.String()
		}
		delete(said, name)
		s.result(e, name, text, out)
	}
}

func (s *summary) result(e event, name, text string, out io.Writer) {
	if e.Test == "" && e.Action == "skip" {
		return // a package without tests
	}
	if e.Test == "" {
		s.packages++
		took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
		fmt.Fprintf(out, "%-4s  %s  %s\n", e.Action, e.Package, took)
		if e.Action == "fail" {
			fmt.Fprint(out, text)
			s.failures = append(s.failures, e.Package)
		}
		return
	}
	switch e.Action {
	case "pass":
		s.passed++
	case "fail":
		s.failed++
		s.failures = append(s.failures, name)
		fmt.Fprint(out, text)
	case "skip":
		s.skipped++
		s.skips = append(s.skips, name+": "+reason(text))
	}
}

// reason is what a test said when it skipped itself, without go test's frame.
func reason(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		words = append(words, line)
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func (s *summary) print(out io.Writer) {
	if len(s.skips) > 0 {
		fmt.Fprintln(out, "\nskipped:")
		for _, line := range s.skips {
			fmt.Fprintln(out, "  "+line)
		}
	}
	if len(s.failures) > 0 {
		fmt.Fprintln(out, "\nfailed:")
		for _, line := range s.failures {
			fmt.Fprintln(out, "  "+line)
		}
	}
	fmt.Fprintf(out, "\n%d tests: %d passed, %d failed, %d skipped, in %d packages\n", s.passed+s.failed+s.skipped, s.passed, s.failed, s.skipped, s.packages)
	if s.passed == 0 {
		fmt.Fprintln(out, "no test passed")
	}
}
