package untrusted

import (
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Prose renders a sentence of unknown origin as one line of printable ASCII of
// at most limit bytes of it. Unlike Line it adds no quotes and keeps those in
// the sentence, so it is no literal to be read back.
func Prose(s string, limit int) string {
	line := Line(backends.NewText([]byte(s)), limit)
	end := strings.LastIndexByte(line, '"')
	return strings.ReplaceAll(line[1:end], `\"`, `"`) + line[end+1:]
}
