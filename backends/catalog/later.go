package catalog

import (
	"context"
	"fmt"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// later is a backend that this version does not have yet. It says so wherever
// it is asked, and is never anything but unavailable.
func later(name, title, instead string) backends.Entry {
	what := fmt.Sprintf("this version of bsm-redteam does not have the %s backend yet", name)
	fix := "use --sandbox " + instead + ", or a newer version"
	return backends.Entry{
		Name: name, Title: title, Real: true,
		Doctor: func(context.Context, backends.Options) backends.Diagnosis {
			return backends.Diagnosis{Findings: []backends.Finding{{What: what, Fix: fix}}}
		},
		New: func(backends.Options) (backends.Sandbox, error) {
			return nil, &backends.Error{Code: backends.ErrNotAvailable, Doing: what, Fix: fix}
		},
	}
}
