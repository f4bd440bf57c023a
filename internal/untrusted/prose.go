package untrusted

import (
	"strings"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// Prose renders a sentence that is mostly our own as one line of printable ASCII,
// of at most limit bytes of it. What is such a line already stays as it is;
// anything else is escaped as by Line, without the quotes.
func Prose(s string, limit int) string {
	if limit <= 0 {
		limit = DefaultMax
	}
	if len(s) <= limit && harmless(s) {
		return s
	}
	text, more := escape(backends.NewText([]byte(s)), limit)
	return text + more
}

// harmless reports whether s is one line in which nothing is a command or a place.
func harmless(s string) bool {
	if hasPlace(s) || strings.Contains(s, "##") || strings.HasPrefix(strings.TrimLeft(s, " "), "::") {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] >= 0x7f {
			return false
		}
	}
	return true
}
