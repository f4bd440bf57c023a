package runnertest

import (
	"slices"
	"strings"
	"unicode"
)

// Command is a workflow command as the runner parses it.
type Command struct {
	Name       string
	Properties map[string]string // keys in lower case: the runner ignores case
	Data       string
}

// builtin are the commands that every runner knows. internal-set-repo-path is
// not among them: it is registered only while a plugin of the runner runs.
var builtin = []string{"stop-commands", "set-env", "set-output", "save-state", "add-mask", "add-path", "add-matcher",
	"remove-matcher", "debug", "warning", "error", "notice", "group", "endgroup", "echo"}

// parseV2 parses "::name key=value,key=value::data". White space may stand before
// it, any that Unicode knows.
func parseV2(line string, registered func(string) bool) (Command, bool) {
	if line = strings.TrimLeftFunc(line, unicode.IsSpace); !strings.HasPrefix(strings.TrimLeftFunc(line, weightless), ":") {
		return Command{}, false
	}
	s := []rune(line)
	if at := find(s, 0, "::"); at < 0 || slices.ContainsFunc(s[:at], func(r rune) bool { return !weightless(r) }) {
		return Command{}, false
	}
	end := find(s, 2, "::")
	if end < 0 {
		return Command{}, false
	}
	name, props, spaced := strings.Cut(string(s[2:end]), " ")
	if name == "" || !registered(name) {
		return Command{}, false
	}
	c := Command{Name: name, Properties: map[string]string{}, Data: unescape(string(s[min(end+2, len(s)):]), dataEscapes)}
	if spaced {
		c.properties(strings.TrimSpace(props), ",", propertyEscapes)
	}
	return c, true
}

// parseLegacy parses "##[name key=value;key=value]data", anywhere in the line.
func parseLegacy(line string, registered func(string) bool) (Command, bool) {
	if !strings.ContainsRune(line, '#') {
		return Command{}, false
	}
	s := []rune(line)
	at := find(s, 0, "##[")
	if at < 0 {
		return Command{}, false
	}
	end := at + slices.Index(s[at:], ']')
	if end < at+3 {
		return Command{}, false
	}
	name, props, spaced := strings.Cut(string(s[at+3:end]), " ")
	if name == "" || !registered(name) {
		return Command{}, false
	}
	c := Command{Name: name, Properties: map[string]string{}, Data: unescape(string(s[end+1:]), legacyEscapes)}
	if spaced {
		c.properties(props, ";", legacyEscapes)
	}
	return c, true
}

func (c *Command) properties(s, separator string, escapes []string) {
	for p := range strings.SplitSeq(s, separator) {
		// The runner splits in two and leaves out empty parts, so that
		// further signs of equality beside the first are lost.
		key, value, ok := strings.Cut(strings.TrimLeft(p, "="), "=")
		if value = strings.TrimLeft(value, "="); ok && value != "" {
			c.Properties[strings.ToLower(key)] = unescape(value, escapes)
		}
	}
}

// The escapes are undone one kind after the other, the per cent sign last.
var (
	dataEscapes     = []string{"%0D", "\r", "%0A", "\n", "%25", "%"}
	propertyEscapes = []string{"%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%"}
	legacyEscapes   = []string{"%3B", ";", "%0D", "\r", "%0A", "\n", "%5D", "]", "%25", "%"}
)

func unescape(s string, pairs []string) string {
	for i := 0; i < len(pairs); i += 2 {
		s = strings.ReplaceAll(s, pairs[i], pairs[i+1])
	}
	return s
}

// find returns where key begins in s at or after from, or -1. The runner compares
// by the rules of the current culture, for which code points without weight do not
// exist: a key with a soft hyphen or a NUL inside is found.
func find(s []rune, from int, key string) int {
	k := []rune(key)
	for at := from; at < len(s); at++ {
		if s[at] != k[0] {
			continue
		}
		n := 1
		for i := at + 1; i < len(s) && n < len(k) && (s[i] == k[n] || weightless(s[i])); i++ {
			if s[i] == k[n] {
				n++
			}
		}
		if n == len(k) {
			return at
		}
	}
	return -1
}

// weightless reports whether a comparison by culture overlooks r. This is more
// than any culture overlooks: a model that sees too many commands is on the safe
// side.
func weightless(r rune) bool {
	return !unicode.IsSpace(r) && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, unicode.Mn)
}
