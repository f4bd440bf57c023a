// Command bsm-redteam attacks a sandbox from inside, watches from outside, and
// says whether it holds.
package main

import (
	"os"
	"runtime/debug"

	"github.com/brainst0rm/sandbox-redteam/internal/cli"
)

func main() {
	collectLess()
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}

// collectLess trades a few megabytes for processor time: what lives is small, so
// the default collects every 4 MiB. A guest that floods its host is still held
// to the limit. GOGC and GOMEMLIMIT keep their meaning.
func collectLess() {
	const percent, limit = 200, 96 << 20
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}
