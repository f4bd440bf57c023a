package actions

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// Fence is a log of a step in which the runner finds no command. The runner
// executes `::name::` at the beginning of a line, after any blanks, and `##[name]`
// anywhere in one, on stdout and stderr alike. What passes the fence was made
// harmless before; this is for what nobody thought of.
type Fence struct {
	mu   sync.Mutex
	w    io.Writer
	line []byte // begun and not ended
}

// NewFence returns a fence before w.
func NewFence(w io.Writer) *Fence { return &Fence{w: w} }

// maxLine bounds what is held back of a line without an end.
const maxLine = 64 << 10

// Write passes whole lines on. The runner ends a line at a carriage return too.
func (f *Fence) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.line = append(f.line, p...)
	end := bytes.LastIndexAny(f.line, "\r\n") + 1
	if end == 0 && len(f.line) < maxLine {
		return len(p), nil
	}
	if end == 0 {
		f.line, end = append(f.line, '\n'), len(f.line)+1
	}
	ready := f.line[:end]
	_, err := io.WriteString(f.w, defuse(string(ready)))
	f.line = append([]byte(nil), f.line[end:]...)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush passes on what has no end yet, and ends it.
func (f *Fence) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.line) == 0 {
		return nil
	}
	_, err := io.WriteString(f.w, defuse(string(f.line))+"\n")
	f.line = nil
	return err
}

func defuse(lines string) string {
	var b strings.Builder
	for len(lines) > 0 {
		end := strings.IndexAny(lines, "\r\n")
		if end < 0 {
			end = len(lines)
		}
		line := lines[:end]
		if command(line) {
			line = untrusted.Prose(line, len(line))
		}
		b.WriteString(line)
		if end < len(lines) {
			b.WriteByte(lines[end])
			end++
		}
		lines = lines[end:]
	}
	return b.String()
}

// command reports whether a line could be a command. The runner compares by the
// rules of a language, to which characters without a width are nothing, so only
// printable ASCII counts.
func command(line string) bool {
	visible := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, line)
	return strings.Contains(visible, "##[") || strings.HasPrefix(strings.TrimLeft(visible, " "), "::")
}
