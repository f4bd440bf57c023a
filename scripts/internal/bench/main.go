// Command bench measures bsm-redteam against the budgets of its issues. A
// budget is a ratio to the peer's figure or to a floor that is measured in the
// same run on the same machine, since machines differ and drift.
//
//	bench [-check] [-bin DIR] [-n ROUNDS]
//
// With -check it exits 1 when a budget is broken, and also when something could
// not be measured: what was not measured is not within its budget.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

// The peer's figures (TypeScript reference, same machine class).
const (
	peerStart    = 83 * time.Millisecond
	peerStartRSS = 45.7 // MiB
	peerMock     = 2380 * time.Millisecond
	peerMockCPU  = 230 * time.Millisecond
)

// A line is one measured figure and its budget.
type line struct {
	what       string
	got, limit float64
	unit       string
	basis      string // where the limit comes from
	err        error
}

func (l line) ok() bool { return l.err == nil && l.got <= l.limit }

func main() {
	check := flag.Bool("check", false, "exit 1 unless every budget is kept")
	bin := flag.String("bin", "bin", "directory of bsm-redteam and bsm-agent")
	rounds := flag.Int("n", 9, "rounds of the short measurements; boots take a third of them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := bench{bin: *bin, rounds: max(*rounds, 3)}
	kept := show(os.Stdout, b.all(ctx))
	if *check && !kept {
		os.Exit(1)
	}
}

// show prints the table and reports whether every budget is kept.
func show(w io.Writer, lines []line) bool {
	kept := len(lines) > 0
	for _, l := range lines {
		kept = kept && l.ok()
		switch {
		case l.err != nil:
			fmt.Fprintf(w, "????  %-44s not measured: %v\n", l.what, l.err)
		case l.ok():
			fmt.Fprintf(w, "ok    %-44s %9.1f %-3s  at most %9.1f  %s\n", l.what, l.got, l.unit, l.limit, l.basis)
		default:
			fmt.Fprintf(w, "OVER  %-44s %9.1f %-3s  at most %9.1f  %s\n", l.what, l.got, l.unit, l.limit, l.basis)
		}
	}
	return kept
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
