package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strconv"
)

// Encode marshals a message, whose Type the caller has set. The messages that a
// session exchanges most are written out by hand: a thousand verified resets
// are thousands of them. A test holds the two ways to the same bytes.
func Encode(m any) ([]byte, error) { return appendMessage(make([]byte, 0, usualFrame), m) }

// EncodeFrame is Encode and AppendFrame in one.
func EncodeFrame(m any) ([]byte, error) {
	b, err := appendMessage(make([]byte, headerSize, usualFrame), m)
	if err != nil {
		return nil, err
	}
	n := len(b) - headerSize
	if n > MaxFrame {
		return nil, &SizeError{Declared: uint64(n), Max: MaxFrame}
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	return b, nil
}

// usualFrame has room for most frames.
const usualFrame = 320

func appendMessage(dst []byte, m any) ([]byte, error) {
	w := object{b: dst, start: len(dst)}
	switch m := m.(type) {
	case *Hello:
		if m.Tools != nil {
			return w.hello(m)
		}
	case *ToolDispatch:
		w.text("type", m.Type)
		w.text("command_id", m.CommandID)
		w.text("tool", m.Tool)
		w.raw("params", m.Params)
		w.number("deadline_ms", m.DeadlineMS)
		return w.end()
	case *ToolResult:
		return w.result(m)
	case *GuestQuery:
		w.text("type", m.Type)
		w.text("query_id", m.QueryID)
		w.text("query_kind", m.QueryKind)
		w.text("ts", m.TS)
		return w.end()
	case *GuestResponse:
		w.text("type", m.Type)
		w.text("query_id", m.QueryID)
		w.raw("result", m.Result)
		return w.end()
	case *OpenFDCount:
		w.number("count", int64(m.Count))
		return w.end()
	case *ResetSignal:
		w.text("type", m.Type)
		w.text("reason", m.Reason)
		w.optional("epoch", m.Epoch)
		if m.UnixNano != 0 {
			w.number("unix_nano", m.UnixNano)
		}
		w.optional("entropy", base64.StdEncoding.EncodeToString(m.Entropy))
		return w.end()
	case *ResetAck:
		w.text("type", m.Type)
		w.text("epoch", m.Epoch)
		if len(m.Applied) > 0 {
			w.list("applied", m.Applied)
		}
		return w.end()
	}
	b, err := marshal(m)
	if err != nil {
		return nil, err
	}
	return append(dst, b...), nil
}

// marshal is Encode for any type.
func marshal(m any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// object is a JSON object that is being written.
type object struct {
	b     []byte
	start int // where in b it begins
	err   error
}

func (w *object) key(key string) {
	if len(w.b) == w.start {
		w.b = append(w.b, '{')
	} else {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, key...)
	w.b = append(w.b, '"', ':')
}

func (w *object) text(key, s string) {
	w.key(key)
	w.quote(s)
}

// optional leaves out what is empty.
func (w *object) optional(key, s string) {
	if s != "" {
		w.text(key, s)
	}
}

// quote appends s as it is when nothing in it has to be escaped.
func (w *object) quote(s string) {
	for i := 0; i < len(s); i++ {
		for i+8 <= len(s) && plain(s[i:i+8]) {
			i += 8
		}
		if i == len(s) {
			break
		}
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x80 {
			b, err := marshal(s)
			w.fail(err)
			w.b = append(w.b, b...)
			return
		}
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, s...)
	w.b = append(w.b, '"')
}

// plain reports whether eight bytes are ASCII and need no escape.
func plain(s string) bool {
	eight := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	return eight&0x8080808080808080 == 0 && !hasSpecial(eight)
}

func (w *object) list(key string, all []string) {
	w.key(key)
	w.b = append(w.b, '[')
	for i, s := range all {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.quote(s)
	}
	w.b = append(w.b, ']')
}

func (w *object) number(key string, n int64) {
	w.key(key)
	w.b = strconv.AppendInt(w.b, n, 10)
}

func (w *object) flag(key string, v bool) {
	w.key(key)
	w.b = strconv.AppendBool(w.b, v)
}

// raw appends JSON without its white space; broken JSON is an error.
func (w *object) raw(key string, m json.RawMessage) {
	w.key(key)
	switch {
	case m == nil:
		w.b = append(w.b, "null"...)
	case string(m) == "{}":
		w.b = append(w.b, m...)
	default:
		b := bytes.NewBuffer(w.b)
		w.fail(json.Compact(b, m))
		w.b = b.Bytes()
	}
}

func (w *object) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *object) end() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	return append(w.b, '}'), nil
}

func (w *object) hello(h *Hello) ([]byte, error) {
	w.text("type", h.Type)
	w.number("version", int64(h.Version))
	w.text("agent_sha256", h.AgentSHA256)
	w.number("pid", int64(h.PID))
	w.flag("vm", h.VM)
	w.text("arch", h.Arch)
	w.optional("boot_id", h.BootID)
	w.text("epoch", h.Epoch)
	w.list("tools", h.Tools)
	return w.end()
}

func (w *object) result(r *ToolResult) ([]byte, error) {
	w.text("type", r.Type)
	w.text("command_id", r.CommandID)
	w.number("exit_code", int64(r.ExitCode))
	w.text("stdout", r.Stdout)
	w.text("stderr", r.Stderr)
	w.text("evidence_hash", r.EvidenceHash)
	w.optional("stdout_encoding", r.StdoutEncoding)
	w.optional("stderr_encoding", r.StderrEncoding)
	if r.StdoutLength != 0 {
		w.number("stdout_length", r.StdoutLength)
	}
	if r.StderrLength != 0 {
		w.number("stderr_length", r.StderrLength)
	}
	w.optional("stdout_sha256", r.StdoutSHA256)
	w.optional("stderr_sha256", r.StderrSHA256)
	if r.TimedOut {
		w.flag("timed_out", true)
	}
	return w.end()
}
