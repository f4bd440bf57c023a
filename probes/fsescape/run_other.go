//go:build !linux

package fsescape

import (
	"context"
	"errors"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// run needs a host whose kernel shows what happens to a file.
func run(context.Context, *probes.Env) (probes.Outcome, error) {
	return probes.Outcome{}, errors.New("the canaries of this probe need a Linux host")
}
