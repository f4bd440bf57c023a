// Package runnertest models what GitHub's runner does with what a step prints and
// with the files that it writes, so that tests can ask what a hostile text would
// have done there. It is written from the behaviour of actions/runner at commit
// 258d6c8 (August 2026), on Linux, and has no network, no workspace and no
// template engine.
//
// Where the model is not exact it sees more commands than the runner would.
package runnertest

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// The runner's limits.
const (
	MaxAnnotations   = 10      // kept of each level, per step
	MaxMessage       = 4096    // UTF-16 units of an annotation
	MaxSummary       = 1 << 20 // bytes of a step summary
	minMaskedToken   = 7       // a shorter token of stop-commands is not masked
	levelError       = "error"
	levelWarning     = "warning"
	unsupportedToken = "pause-logging"
)

// Annotation is one remark of a job.
type Annotation struct {
	Level, Message string
	// Properties of the command, or what a problem matcher found.
	Properties map[string]string
	// Matcher is the owner of the problem matcher that it came from.
	Matcher string
}

// Runner is the state of one step.
type Runner struct {
	// Commands were executed, in order.
	Commands []Command
	// Outputs, Env and State are the last values; Paths were put before PATH.
	Outputs, Env, State map[string]string
	Paths               []string
	Masks               []string
	// Annotations are those kept; Lost counts those over the limit.
	Annotations []Annotation
	Lost        int
	// Summary is what the job shows, masked; empty when it was dropped.
	Summary string
	// Log are the lines as the job's log shows them.
	Log []string
	// Failed is set when a command made the step fail.
	Failed bool

	// Insecure is ACTIONS_ALLOW_UNSECURE_COMMANDS: set-env and add-path work.
	Insecure bool

	matchers []Matcher
	counts   map[string]int
	token    string // of stop-commands
}

// New returns a step with problem matchers.
func New(matchers ...Matcher) *Runner {
	return &Runner{Outputs: map[string]string{}, Env: map[string]string{}, State: map[string]string{}, counts: map[string]int{}, matchers: matchers}
}

// Untouched reports what a step did that is more than printing, or "".
func (r *Runner) Untouched() string {
	switch {
	case len(r.Commands) > 0:
		return fmt.Sprintf("command executed: %+v", r.Commands[0])
	case len(r.Annotations) > 0:
		return fmt.Sprintf("annotation made: %+v", r.Annotations[0])
	case len(r.Outputs)+len(r.Env)+len(r.State)+len(r.Paths)+len(r.Masks) > 0:
		return fmt.Sprintf("outputs %v, env %v, state %v, paths %v, masks %v", r.Outputs, r.Env, r.State, r.Paths, r.Masks)
	case r.token != "" || r.Failed:
		return fmt.Sprintf("commands stopped by %q, step failed: %v", r.token, r.Failed)
	}
	return ""
}

// Print takes all of what the step wrote to one of its streams. Lines end at LF,
// CR or both.
func (r *Runner) Print(b []byte) {
	for _, line := range readLines(decode(b)) {
		r.line(line)
	}
}

func (r *Runner) registered(name string) bool {
	for _, b := range builtin {
		if strings.EqualFold(name, b) {
			return true
		}
	}
	return r.token != "" && strings.EqualFold(name, r.token)
}

func (r *Runner) line(line string) {
	if r.command(line) {
		return
	}
	stripped := colours.ReplaceAllString(line, "")
	for _, m := range r.matchers {
		if a, ok := m.match(stripped); ok {
			r.annotate(a)
			r.show("##[" + a.Level + "]" + stripped)
			return
		}
	}
	r.show(line)
}

// colours is what the runner strips before it asks its matchers: not the escape
// character, which C# does not write in octal, but NUL and "33[".
var colours = regexp.MustCompile(`\x0033\[[0-9;]*m?`)

func (r *Runner) command(line string) bool {
	c, ok := parseV2(line, r.registered)
	if !ok {
		c, ok = parseLegacy(line, r.registered)
	}
	if !ok {
		return false
	}
	if r.token != "" {
		if !strings.EqualFold(c.Name, r.token) {
			return false
		}
		r.token = ""
		r.Commands = append(r.Commands, c)
		r.show(line)
		return true
	}
	r.Commands = append(r.Commands, c)
	if err := r.execute(c); err != nil {
		r.annotate(Annotation{Level: levelError, Message: fmt.Sprintf("Unable to process command '%s' successfully.", line)})
		r.annotate(Annotation{Level: levelError, Message: err.Error()})
		r.Failed = true
	}
	return true
}

func (r *Runner) execute(c Command) error {
	switch name := strings.ToLower(c.Name); name {
	case "stop-commands":
		if r.registered(c.Data) || c.Data == "" || strings.EqualFold(c.Data, unsupportedToken) {
			return fmt.Errorf("the token %q of stop-commands is not allowed", c.Data)
		}
		r.token = c.Data
		if len(utf16.Encode([]rune(r.token))) >= minMaskedToken {
			r.Masks = append(r.Masks, r.token)
		}
	case "set-env":
		switch {
		case !r.Insecure:
			return fmt.Errorf("the command %s is disabled", name)
		case c.Properties["name"] == "":
			return fmt.Errorf("%s has no name", name)
		case strings.EqualFold(c.Properties["name"], blocked):
			r.annotate(Annotation{Level: levelError, Message: "can't set " + blocked})
		default:
			r.Env[c.Properties["name"]] = c.Data
		}
	case "set-output":
		if c.Properties["name"] == "" {
			return fmt.Errorf("%s has no name", name)
		}
		put(r.Outputs, c.Properties["name"], c.Data)
	case "save-state":
		if c.Properties["name"] == "" {
			return fmt.Errorf("%s has no name", name)
		}
		put(r.State, c.Properties["name"], c.Data)
	case "add-path":
		if !r.Insecure || c.Data == "" {
			return fmt.Errorf("the command %s is disabled, or has no path", name)
		}
		r.Paths = append(r.Paths, c.Data)
	case "add-mask":
		if strings.TrimSpace(c.Data) == "" {
			r.annotate(Annotation{Level: levelWarning, Message: "can't mask nothing"})
			return nil
		}
		r.Masks = append(r.Masks, c.Data)
		for part := range strings.FieldsFuncSeq(c.Data, func(r rune) bool { return r == '\r' || r == '\n' }) {
			if part = strings.TrimSpace(part); part != "" && part != c.Data {
				r.Masks = append(r.Masks, part)
			}
		}
	case "error", "warning", "notice":
		r.annotate(Annotation{Level: name, Message: c.Data, Properties: c.Properties})
		r.show("##[" + name + "]" + c.Data)
	case "group", "endgroup":
		data := c.Data
		if name == "endgroup" {
			data = ""
		}
		r.show("##[" + name + "]" + data)
	case "echo":
		if v := strings.ToUpper(strings.TrimSpace(c.Data)); v != "ON" && v != "OFF" {
			return fmt.Errorf("the value %q of echo is not on or off", c.Data)
		}
	case "remove-matcher":
		kept := r.matchers[:0:0]
		for _, m := range r.matchers {
			if !strings.EqualFold(m.Owner, c.Properties["owner"]) {
				kept = append(kept, m)
			}
		}
		r.matchers = kept
	}
	return nil
}

// blocked may not be set by a step.
const blocked = "NODE_OPTIONS"

// put sets a key that the runner compares without case.
func put(m map[string]string, key, value string) {
	for k := range m {
		if strings.EqualFold(k, key) {
			delete(m, k)
		}
	}
	m[key] = value
}

func (r *Runner) annotate(a Annotation) {
	a.Message = r.mask(a.Message)
	if units := utf16.Encode([]rune(a.Message)); len(units) > MaxMessage {
		a.Message = string(utf16.Decode(units[:MaxMessage]))
	}
	if r.counts[a.Level]++; r.counts[a.Level] > MaxAnnotations {
		r.Lost++
		return
	}
	r.Annotations = append(r.Annotations, a)
}

func (r *Runner) show(line string) { r.Log = append(r.Log, r.mask(line)) }

func (r *Runner) mask(s string) string {
	for _, m := range r.Masks {
		s = strings.ReplaceAll(s, m, "***")
	}
	return s
}

// decode reads bytes as the runner does: UTF-8, a byte order mark dropped, and a
// replacement character for what is not valid.
func decode(b []byte) string {
	return string(bytes.ToValidUTF8(bytes.TrimPrefix(b, []byte("\ufeff")), []byte(string(utf8.RuneError))))
}

// readLines splits as .NET's StreamReader.ReadLine does.
func readLines(s string) []string {
	var out []string
	for s != "" {
		i := strings.IndexAny(s, "\r\n")
		if i < 0 {
			return append(out, s)
		}
		out = append(out, s[:i])
		if s[i] == '\r' && strings.HasPrefix(s[i+1:], "\n") {
			i++
		}
		s = s[i+1:]
	}
	return out
}
