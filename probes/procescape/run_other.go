//go:build !linux

package procescape

import (
	"context"
	"errors"

	"github.com/brainst0rm/sandbox-redteam/probes"
)

// run needs a host whose kernel shows what happens to a process.
func run(context.Context, *probes.Env) (probes.Outcome, error) {
	return probes.Outcome{}, errors.New("the canaries of this probe need a Linux host")
}
