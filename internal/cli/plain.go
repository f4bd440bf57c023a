package cli

import "github.com/brainst0rm/sandbox-redteam/internal/untrusted"

// maxPlain bounds a text of a report on the screen.
const maxPlain = 2000

// plain renders a text of unknown origin as one line of printable ASCII.
func plain(s string) string { return untrusted.Prose(s, maxPlain) }
