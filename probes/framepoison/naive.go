package framepoison

import (
	"encoding/binary"
	"encoding/json"
	"unicode/utf8"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// naiveBreaks decodes raw as a careless host would (trust the length, unmarshal
// into a struct, believe what matches) and reports whether the mode's poison
// takes effect there. It is the witness's own test and the control's judge; it
// shares no code with package wire.
func naiveBreaks(mode string, raw []byte, commandID string) bool {
	var answers, empty, junk, forged, replaced, deep int
	for len(raw) >= 4 {
		n := uint64(binary.BigEndian.Uint32(raw))
		if n > uint64(len(raw)-4) {
			switch mode {
			case attack.PoisonOversized:
				return n >= 1<<30 // it would allocate that much
			case attack.PoisonTruncated, attack.PoisonDrip:
				return true // it would wait for the rest for ever
			}
			break // the tap was cut here
		}
		body := raw[4 : 4+n]
		raw = raw[4+n:]
		var m struct {
			Type      string `json:"type"`
			RequestID string `json:"request_id"`
			CommandID string `json:"command_id"`
			ExitCode  int    `json:"exit_code"`
			Stderr    string `json:"stderr"`
			Result    any    `json:"result"`
		}
		if n == 0 {
			empty++
			continue
		}
		if err := json.Unmarshal(body, &m); err != nil {
			if depth(body) > 10_000 {
				deep++ // encoding/json's own limit saves even a careless Go host; others recurse
			}
			junk++
			continue
		}
		if m.Type != "ToolResult" {
			continue
		}
		answers++
		if m.ExitCode == attack.ForgedExit && (m.CommandID == commandID || m.RequestID == commandID) {
			forged++
			if !utf8.Valid(body) {
				replaced++
			}
		}
	}
	switch mode {
	case attack.PoisonZero:
		return empty > 0
	case attack.PoisonUnsolicited:
		return answers >= 2
	case attack.PoisonNested:
		return deep > 0
	case attack.PoisonUTF8:
		return replaced > 0
	case attack.PoisonInjection:
		return forged > 0
	case attack.PoisonJunk:
		return junk >= 50
	}
	return false
}

func depth(body []byte) int {
	deepest, now := 0, 0
	for _, c := range body {
		switch c {
		case '[', '{':
			now++
			deepest = max(deepest, now)
		case ']', '}':
			now--
		}
	}
	return deepest
}
