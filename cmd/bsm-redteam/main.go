// Command bsm-redteam attacks a sandbox from inside, watches from outside, and
// says whether it holds.
package main

import (
	"os"

	"github.com/brainst0rm/sandbox-redteam/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
