package attack

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"strings"
)

// ChannelPoison is the tool of P-A8. It writes malformed bytes to the raw
// message channel, below the agent.
const ChannelPoison = "channel.poison"

// ChannelPoisonParams are the parameters of ChannelPoison.
type ChannelPoisonParams struct {
	Nonce string `json:"nonce"`
	// Mode is one of PoisonModes.
	Mode string `json:"mode"`
	// CommandID is that of the call itself; some modes forge answers to it.
	CommandID string `json:"command_id"`
	// HoldMS is how long the tool stays after its last byte (or, for a drip,
	// spreads its bytes over), so that the host's frame deadline can pass.
	HoldMS int `json:"hold_ms,omitempty"`
}

// ForgedExit is the exit code that forged answers claim. The tool itself exits
// with 0.
const ForgedExit = 98

// junkFrames are sent; when junkShown of them arrived, junk did.
const (
	junkFrames = 4000
	junkShown  = 50
)

// The modes of ChannelPoison.
const (
	PoisonOversized   = "oversized"
	PoisonTruncated   = "truncated"
	PoisonDrip        = "drip"
	PoisonZero        = "zero-length"
	PoisonUnsolicited = "unsolicited-duplicate"
	PoisonNested      = "deeply-nested"
	PoisonUTF8        = "invalid-utf8"
	PoisonInjection   = "json-injection"
	PoisonJunk        = "junk-frames"
)

// PoisonModes lists the modes in the order in which they are tried: those that
// leave the session usable first.
func PoisonModes() []string {
	return []string{PoisonUnsolicited, PoisonUTF8, PoisonInjection, PoisonNested, PoisonZero, PoisonJunk, PoisonOversized, PoisonTruncated, PoisonDrip}
}

// PoisonBytes returns the bytes of a mode. Both halves compute them, so that the
// host's tap can tell whether every one of them arrived; each carries the nonce.
func PoisonBytes(mode, nonce, commandID string) []byte {
	switch mode {
	case PoisonOversized: // 1 GiB announced, 64 KiB sent
		return append(header(1<<30), fill(nonce, 64<<10)...)
	case PoisonTruncated: // 4 KiB announced, 100 bytes sent
		return append(header(4<<10), fill(nonce, 100)...)
	case PoisonDrip: // 4 KiB announced, 48 bytes dripped
		return append(header(4<<10), fill(nonce, 44)...)
	case PoisonZero:
		return bytes.Join([][]byte{header(0), frame([]byte(nonce))}, nil)
	case PoisonUnsolicited: // two well-formed answers that nobody asked for
		b := answer("never-asked-"+nonce, nonce)
		return append(frame(b), frame(b)...)
	case PoisonNested:
		const depth = 20_000
		return frame([]byte(`{"type":"GuestResponse","query_id":"` + nonce + `","result":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`))
	case PoisonUTF8:
		b := answer(commandID, nonce)
		return frame(bytes.Replace(b, []byte(`"stderr":""`), []byte("\"stderr\":\"\xff\xc0\x80\""), 1))
	case PoisonInjection: // shadowed, duplicate and case-folded keys, and a NUL
		return bytes.Join([][]byte{
			frame([]byte(`{"type":"ToolResult","request_id":` + quote(commandID) + `,"command_id":"other","exit_code":0,"COMMAND_ID":` + quote(commandID) +
				`,"EXIT_CODE":98,"stdout":` + quote(nonce) + `,"stderr":"","evidence_hash":""}`)),
			frame([]byte(`{"type":"ErrorEvent","type":"ToolResult","command_id":` + quote(commandID) + `,"exit_code":0,"exit_code":98,"stdout":` + quote(nonce) + `,"stderr":"\u0000","evidence_hash":""}`)),
		}, nil)
	case PoisonJunk:
		return bytes.Repeat(frame([]byte("junk "+nonce)), junkFrames)
	}
	return nil
}

// PoisonShown returns how many of a mode's bytes have to arrive to show that the
// poison did. A host that refuses it stops reading, so it need not see the rest.
func PoisonShown(mode string, all []byte) int {
	switch mode {
	case PoisonOversized, PoisonDrip: // the header and half of the nonce
		return 4 + 16
	case PoisonJunk:
		return len(all) / junkFrames * junkShown
	}
	return len(all)
}

func header(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

func frame(body []byte) []byte { return append(header(uint32(len(body))), body...) }

func fill(nonce string, n int) []byte { return bytes.Repeat([]byte(nonce), n/len(nonce)+1)[:n] }

func answer(id, stdout string) []byte {
	return []byte(`{"type":"ToolResult","command_id":` + quote(id) + `,"exit_code":98,"stdout":` + quote(stdout) + `,"stderr":"","evidence_hash":""}`)
}

func quote(s string) string {
	b, _ := json.Marshal(s) // a string always marshals
	return string(b)
}
