package runnertest

import (
	"fmt"
	"strings"
)

// Pair is one entry of a file command.
type Pair struct{ Key, Value string }

// ParsePairs parses the file of GITHUB_OUTPUT, GITHUB_ENV or GITHUB_STATE. It
// returns the entries before a malformed one, which the runner has taken by then,
// and an error for that one, which fails the step.
func ParsePairs(b []byte) ([]Pair, error) {
	text := decode(b)
	var out []Pair
	for text != "" {
		line, rest, _ := strings.Cut(text, "\n")
		text = rest
		if line == "" {
			continue
		}
		equals, heredoc := strings.Index(line, "="), strings.Index(line, "<<")
		switch {
		case equals >= 0 && (heredoc < 0 || equals < heredoc):
			out = append(out, Pair{line[:equals], line[equals+1:]})
		case heredoc >= 0:
			key, delimiter := line[:heredoc], line[heredoc+2:]
			if key == "" || delimiter == "" {
				return out, fmt.Errorf("invalid format %q: name or delimiter is empty", line)
			}
			value, rest, err := heredocValue(text, delimiter)
			if err != nil {
				return out, err
			}
			out, text = append(out, Pair{key, value}), rest
		default:
			return out, fmt.Errorf("invalid format %q", line)
		}
	}
	return out, nil
}

func heredocValue(text, delimiter string) (value, rest string, err error) {
	var lines []string
	for text != "" {
		line, after, ended := strings.Cut(text, "\n")
		switch {
		case line == delimiter:
			return strings.Join(lines, "\n"), after, nil
		case !ended:
			return "", "", fmt.Errorf("the last line is not ended and is not the delimiter %q", delimiter)
		}
		lines, text = append(lines, line), after
	}
	return "", "", fmt.Errorf("delimiter %q not found", delimiter)
}

// OutputFile processes what the step left in GITHUB_OUTPUT.
func (r *Runner) OutputFile(b []byte) {
	r.pairs("output", b, func(p Pair) error {
		if p.Key == "" {
			return fmt.Errorf("an output has no name")
		}
		put(r.Outputs, p.Key, p.Value)
		return nil
	})
}

// EnvFile processes what the step left in GITHUB_ENV.
func (r *Runner) EnvFile(b []byte) {
	r.pairs("env", b, func(p Pair) error {
		if strings.EqualFold(p.Key, blocked) {
			r.annotate(Annotation{Level: levelError, Message: "can't set " + blocked})
			return nil
		}
		r.Env[p.Key] = p.Value
		return nil
	})
}

// StateFile processes what the step left in GITHUB_STATE.
func (r *Runner) StateFile(b []byte) {
	r.pairs("state", b, func(p Pair) error { put(r.State, p.Key, p.Value); return nil })
}

func (r *Runner) pairs(what string, b []byte, set func(Pair) error) {
	list, err := ParsePairs(b)
	for _, p := range list {
		if e := set(p); e != nil {
			err = e
			break
		}
	}
	if err != nil {
		r.annotate(Annotation{Level: levelError, Message: fmt.Sprintf("Unable to process file command '%s' successfully.", what)})
		r.annotate(Annotation{Level: levelError, Message: err.Error()})
		r.Failed = true
	}
}

// PathFile processes what the step left in GITHUB_PATH.
func (r *Runner) PathFile(b []byte) {
	for _, line := range readLines(decode(b)) {
		if line != "" {
			r.Paths = append(r.Paths, line)
		}
	}
}

// SummaryFile processes what the step left in GITHUB_STEP_SUMMARY. One over the
// limit is dropped whole, with an error.
func (r *Runner) SummaryFile(b []byte) {
	if len(b) > MaxSummary {
		r.annotate(Annotation{Level: levelError, Message: fmt.Sprintf("the step summary of %d bytes is over the limit of %d", len(b), MaxSummary)})
		return
	}
	var s strings.Builder
	for _, line := range readLines(decode(b)) {
		s.WriteString(r.mask(line) + "\n")
	}
	r.Summary = s.String()
}
