package guest

import (
	"errors"
	"os"
	"time"
)

// Stdio joins the two pipes of a child process into one stream with deadlines:
// r is what the child writes, w what it reads.
func Stdio(r, w *os.File) *Pipes { return &Pipes{r, w} }

// Pipes is the stream of a child's stdin and stdout.
type Pipes struct{ r, w *os.File }

// Read reads what the child wrote.
func (p *Pipes) Read(b []byte) (int, error) { return p.r.Read(b) }

// Write writes to the child.
func (p *Pipes) Write(b []byte) (int, error) { return p.w.Write(b) }

// Close closes both pipes.
func (p *Pipes) Close() error { return errors.Join(p.w.Close(), p.r.Close()) }

// SetReadDeadline bounds reads.
func (p *Pipes) SetReadDeadline(t time.Time) error { return p.r.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (p *Pipes) SetWriteDeadline(t time.Time) error { return p.w.SetWriteDeadline(t) }
