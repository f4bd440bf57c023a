package wire

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// The message types. The first seven are protocol v1 with its field names;
// Hello is ours.
const (
	TypeToolDispatch  = "ToolDispatch"
	TypeToolResult    = "ToolResult"
	TypeGuestQuery    = "GuestQuery"
	TypeGuestResponse = "GuestResponse"
	TypeResetSignal   = "ResetSignal"
	TypeResetAck      = "ResetAck"
	TypeErrorEvent    = "ErrorEvent"
	TypeHello         = "Hello"
)

// The kinds of GuestQuery.
const (
	QueryOpenFDCount = "OpenFdCount" // the agent's open fds without sockets
	QueryMemUsage    = "MemUsage"
	QueryProcessList = "ProcessList" // at most MaxProcesses
	QueryEpoch       = "Epoch"       // ours: the epoch planted in the agent's memory
)

// MaxProcesses bounds a ProcessList.
const MaxProcesses = 4096

// MaxDepth bounds the nesting of any JSON that is decoded here.
const MaxDepth = 64

// Reserved exit codes of the agent itself.
const (
	ExitNoTool     = 127 // the tool is not in the agent's table
	ExitAgentError = 254 // the agent could not start the tool
	ExitKilled     = 137 // the agent killed the tree at the deadline
)

// Hello is the agent's first message of a session.
type Hello struct {
	Type        string `json:"type"`
	Version     int    `json:"version"`
	AgentSHA256 string `json:"agent_sha256"`
	PID         int    `json:"pid"`
	// VM says that the agent entered VM mode because the digest on the kernel
	// command line named it.
	VM     bool   `json:"vm"`
	Arch   string `json:"arch"`
	BootID string `json:"boot_id,omitempty"`
	Epoch  string `json:"epoch"`
	// Tools lists the tool table, sorted.
	Tools []string `json:"tools"`
}

// ToolDispatch asks the agent to run a tool.
type ToolDispatch struct {
	Type       string          `json:"type"`
	CommandID  string          `json:"command_id"`
	Tool       string          `json:"tool"`
	Params     json.RawMessage `json:"params"`
	DeadlineMS int64           `json:"deadline_ms"`
}

// ToolResult answers a ToolDispatch. Stdout and Stderr are text when they are
// valid UTF-8, else base64 as their Encoding says. Output over the agent's cap
// is cut; then the length and hash of the whole are given.
type ToolResult struct {
	Type           string `json:"type"`
	CommandID      string `json:"command_id"`
	ExitCode       int    `json:"exit_code"`
	Stdout         string `json:"stdout"`
	Stderr         string `json:"stderr"`
	EvidenceHash   string `json:"evidence_hash"`
	StdoutEncoding string `json:"stdout_encoding,omitempty"`
	StderrEncoding string `json:"stderr_encoding,omitempty"`
	StdoutLength   int64  `json:"stdout_length,omitempty"`
	StderrLength   int64  `json:"stderr_length,omitempty"`
	StdoutSHA256   string `json:"stdout_sha256,omitempty"`
	StderrSHA256   string `json:"stderr_sha256,omitempty"`
	// TimedOut says that the deadline passed and that the whole process tree
	// of the tool was killed and is confirmed dead.
	TimedOut bool `json:"timed_out,omitempty"`
}

// EncodingBase64 marks an output that is not valid UTF-8.
const EncodingBase64 = "base64"

// SetOutput stores out in a result's text and encoding fields.
func SetOutput(text, encoding *string, out []byte) {
	if utf8.Valid(out) {
		*text, *encoding = string(out), ""
		return
	}
	*text, *encoding = base64.StdEncoding.EncodeToString(out), EncodingBase64
}

// Output decodes what SetOutput stored.
func Output(text, encoding string) ([]byte, error) {
	switch encoding {
	case "":
		return []byte(text), nil
	case EncodingBase64:
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, fmt.Errorf("%w: output is not base64", ErrMalformed)
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: unknown output encoding", ErrMalformed)
}

// EvidenceHash is the SHA-256, in lower-case hex, over stdout and stderr, each
// preceded by its length as a big-endian uint64. It covers what is in the
// frame, so after a cut the cut output.
func EvidenceHash(stdout, stderr []byte) string {
	var sum [sha256.Size]byte
	var short [256]byte
	if len(stdout)+len(stderr)+16 <= len(short) {
		b := append(binary.BigEndian.AppendUint64(short[:0], uint64(len(stdout))), stdout...)
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(stderr))), stderr...)
		sum = sha256.Sum256(b)
	} else {
		h := sha256.New()
		var n [8]byte
		for _, b := range [][]byte{stdout, stderr} {
			binary.BigEndian.PutUint64(n[:], uint64(len(b)))
			h.Write(n[:])
			h.Write(b)
		}
		h.Sum(sum[:0])
	}
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// GuestQuery asks the agent about its world.
type GuestQuery struct {
	Type      string `json:"type"`
	QueryID   string `json:"query_id"`
	QueryKind string `json:"query_kind"`
	TS        string `json:"ts"`
}

// GuestResponse answers a GuestQuery.
type GuestResponse struct {
	Type    string          `json:"type"`
	QueryID string          `json:"query_id"`
	Result  json.RawMessage `json:"result"`
}

// OpenFDCount is the result of QueryOpenFDCount.
type OpenFDCount struct {
	Count int `json:"count"`
}

// MemUsage is the result of QueryMemUsage, as the guest sees it.
type MemUsage struct {
	TotalBytes     int64 `json:"total_bytes"`
	AvailableBytes int64 `json:"available_bytes"`
}

// ProcessList is the result of QueryProcessList.
type ProcessList struct {
	Processes []Process `json:"processes"`
	Truncated bool      `json:"truncated,omitempty"`
}

// Process is one line of a ProcessList.
type Process struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
	Args string `json:"args,omitempty"`
}

// Epoch is the result of QueryEpoch.
type Epoch struct {
	Epoch string `json:"epoch"`
}

// ResetSignal tells the agent that the host is about to reset, or has just
// reset, the sandbox. After a restore it carries the time and fresh entropy.
type ResetSignal struct {
	Type   string `json:"type"`
	Reason string `json:"reason"`
	// Epoch, when set, replaces the epoch in the agent's memory.
	Epoch string `json:"epoch,omitempty"`
	// UnixNano and Entropy (base64) are applied in VM mode only.
	UnixNano int64  `json:"unix_nano,omitempty"`
	Entropy  []byte `json:"entropy,omitempty"`
}

// ResetAck answers a ResetSignal.
type ResetAck struct {
	Type  string `json:"type"`
	Epoch string `json:"epoch"`
	// Applied lists what was done: "clock", "entropy".
	Applied []string `json:"applied,omitempty"`
}

// ErrorEvent reports what the agent could not attribute to a call.
type ErrorEvent struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// ErrMalformed is wrapped by every decoding error of this file.
var ErrMalformed = errors.New("malformed message")

// Decode decodes one message strictly: valid UTF-8, bounded depth, an object
// whose keys are known, unique and of their exact spelling, every required key
// present and of its exact type. It returns a pointer to one of the structs
// above.
func Decode(body []byte) (any, error) {
	var f fields
	if err := f.parse(body); err != nil {
		return nil, err
	}
	typ, err := f.str("type", true)
	if err != nil {
		return nil, err
	}
	var m any
	switch typ {
	case TypeHello:
		m, err = decodeHello(&f)
	case TypeToolDispatch:
		m, err = decodeToolDispatch(&f)
	case TypeToolResult:
		m, err = decodeToolResult(&f)
	case TypeGuestQuery:
		q := &GuestQuery{Type: typ}
		err = cmp.Or(f.strs(true, field{"query_id", &q.QueryID}, field{"query_kind", &q.QueryKind}),
			f.strs(false, field{"ts", &q.TS}))
		m = q
	case TypeGuestResponse:
		r := &GuestResponse{Type: typ}
		err = f.strs(true, field{"query_id", &r.QueryID})
		if at, ok := f.find("result"); ok {
			r.Result = body[at.from:at.to:at.to]
		} else if err == nil {
			err = missing("result")
		}
		m = r
	case TypeResetSignal, TypeResetAck:
		m, err = decodeReset(typ, &f)
	case TypeErrorEvent:
		ev := &ErrorEvent{Type: typ}
		err = f.strs(true, field{"code", &ev.Code}, field{"message", &ev.Message})
		m = ev
	default:
		return nil, fmt.Errorf("%w: unknown type %s", ErrMalformed, quote(typ))
	}
	if err != nil {
		return nil, err
	}
	if err := f.rest(); err != nil {
		return nil, err
	}
	return m, nil
}

func decodeHello(f *fields) (*Hello, error) {
	h := &Hello{Type: TypeHello}
	err := cmp.Or(
		f.strs(true, field{"agent_sha256", &h.AgentSHA256}, field{"arch", &h.Arch}, field{"epoch", &h.Epoch}),
		f.strs(false, field{"boot_id", &h.BootID}),
		f.integer("version", &h.Version, true), f.integer("pid", &h.PID, true),
		f.boolean("vm", &h.VM, true), f.strings("tools", &h.Tools, true))
	return h, err
}

func decodeToolDispatch(f *fields) (*ToolDispatch, error) {
	d := &ToolDispatch{Type: TypeToolDispatch}
	err := cmp.Or(
		f.strs(true, field{"command_id", &d.CommandID}, field{"tool", &d.Tool}),
		f.int64("deadline_ms", &d.DeadlineMS, true))
	switch at, ok := f.find("params"); {
	case !ok:
		d.Params = json.RawMessage("{}")
	case f.body[at.from] != '{':
		err = cmp.Or(err, fmt.Errorf("%w: params is not an object", ErrMalformed))
	default:
		d.Params = f.body[at.from:at.to:at.to]
	}
	return d, err
}

func decodeToolResult(f *fields) (*ToolResult, error) {
	r := &ToolResult{Type: TypeToolResult}
	err := cmp.Or(
		f.strs(true, field{"command_id", &r.CommandID}, field{"stdout", &r.Stdout}, field{"stderr", &r.Stderr}, field{"evidence_hash", &r.EvidenceHash}),
		f.strs(false, field{"stdout_encoding", &r.StdoutEncoding}, field{"stderr_encoding", &r.StderrEncoding},
			field{"stdout_sha256", &r.StdoutSHA256}, field{"stderr_sha256", &r.StderrSHA256}),
		f.integer("exit_code", &r.ExitCode, true),
		f.int64("stdout_length", &r.StdoutLength, false), f.int64("stderr_length", &r.StderrLength, false),
		f.boolean("timed_out", &r.TimedOut, false))
	return r, err
}

func decodeReset(typ string, f *fields) (any, error) {
	if typ == TypeResetSignal {
		s := &ResetSignal{Type: typ}
		err := cmp.Or(f.strs(true, field{"reason", &s.Reason}), f.strs(false, field{"epoch", &s.Epoch}),
			f.int64("unix_nano", &s.UnixNano, false), f.value("entropy", &s.Entropy, false))
		return s, err
	}
	a := &ResetAck{Type: typ}
	err := cmp.Or(f.strs(true, field{"epoch", &a.Epoch}), f.strings("applied", &a.Applied, false))
	return a, err
}

// DecodeResult decodes the result of a query into one of *OpenFDCount,
// *MemUsage, *ProcessList and *Epoch, as strictly as Decode. A ProcessList may
// be longer than MaxProcesses.
func DecodeResult(raw json.RawMessage, into any) error {
	var f fields
	if err := f.parse(raw); err != nil {
		return err
	}
	var err error
	switch v := into.(type) {
	case *OpenFDCount:
		err = f.integer("count", &v.Count, true)
	case *MemUsage:
		err = cmp.Or(f.int64("total_bytes", &v.TotalBytes, true), f.int64("available_bytes", &v.AvailableBytes, true))
	case *ProcessList:
		err = cmp.Or(f.value("processes", &v.Processes, true), f.boolean("truncated", &v.Truncated, false))
	case *Epoch:
		err = f.strs(true, field{"epoch", &v.Epoch})
	default:
		return fmt.Errorf("%T is no result of a query", into)
	}
	if err != nil {
		return err
	}
	return f.rest()
}
