package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/brainst0rm/sandbox-redteam/internal/report"
	"github.com/brainst0rm/sandbox-redteam/probes/runner"
)

// terminal reports whether w is a terminal, and its width.
func terminal(w io.Writer) (int, bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}

// progress shows how far a run is: one live line on a terminal, and otherwise a
// plain line per probe.
type progress struct {
	w      io.Writer
	live   bool
	width  int
	shown  bool
	last   time.Time
	begins time.Time
}

// redraw bounds how often the live line changes.
const redraw = 100 * time.Millisecond

func newProgress(w io.Writer, terminal func(io.Writer) (int, bool)) *progress {
	width, live := terminal(w)
	return &progress{w: w, live: live, width: width}
}

func (p *progress) event(e runner.Event) {
	at := fmt.Sprintf("[%d/%d] %s", e.Index+1, e.Of, e.Probe)
	switch {
	case e.Result != nil:
		p.clear()
		if !p.live { // on a terminal the table says it soon
			p.line("%s: %s (%.1fs)", at, report.Verdict(*e.Result), float64(e.Result.DurationMS)/1000)
		}
	case e.Skipped != nil:
		p.clear()
		if !p.live {
			p.line("%s: skipped: %s", at, plain(e.Skipped.Reason))
		}
	case p.live:
		p.draw(at, e)
	}
}

func (p *progress) draw(at string, e runner.Event) {
	now := time.Now()
	if e.Total == 0 {
		p.begins = now
	} else if now.Sub(p.last) < redraw {
		return
	} else {
		at += fmt.Sprintf(" %d/%d %.0fs", e.Done, e.Total, now.Sub(p.begins).Seconds())
	}
	p.last, p.shown = now, true
	if len(at) >= p.width {
		at = at[:max(p.width-1, 0)]
	}
	_, _ = fmt.Fprint(p.w, "\r", at, strings.Repeat(" ", max(p.width-1-len(at), 0)))
}

// clear removes the live line.
func (p *progress) clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r", strings.Repeat(" ", max(p.width-1, 0)), "\r")
		p.shown = false
	}
}

func (p *progress) line(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format+"\n", args...) }
