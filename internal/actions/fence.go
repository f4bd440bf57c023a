package actions

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// Fence is a log of a step in which the runner finds no command, and no problem
// matcher of the job a place in a file. The runner executes `::name::` at the
// beginning of a line, after any blanks, and `##[name]` anywhere in one, on stdout
// and stderr alike. What is printed was made harmless before; this is for what
// nobody thought of.
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

// defuse keeps the ends of lines and makes prose of what is between them.
func defuse(lines string) string {
	var b strings.Builder
	for len(lines) > 0 {
		end := strings.IndexAny(lines, "\r\n")
		if end < 0 {
			end = len(lines)
		}
		b.WriteString(untrusted.Prose(lines[:end], max(end, 1)))
		if end < len(lines) {
			b.WriteByte(lines[end])
			end++
		}
		lines = lines[end:]
	}
	return b.String()
}
