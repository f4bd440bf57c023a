package cli

import (
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/untrusted"
)

// maxPlain bounds a text of a report on the screen.
const maxPlain = 2000

// plain renders a text of unknown origin as one line of printable ASCII.
func plain(s string) string {
	line := untrusted.Line(backends.NewText([]byte(s)), maxPlain)
	end := strings.LastIndexByte(line, '"')
	// Quotes are harmless in a line of prose; everything else stays escaped.
	return strings.ReplaceAll(line[1:end], `\"`, `"`) + line[end+1:]
}
