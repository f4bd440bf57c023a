package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// FieldMap is the top level of a JSON object with its values undecoded.
type FieldMap map[string]json.RawMessage

// Fields splits a JSON object into its fields. It refuses invalid UTF-8, nesting
// over MaxDepth, duplicate keys and trailing bytes. The values alias body.
func Fields(body []byte) (FieldMap, error) {
	if err := checkSyntax(body); err != nil {
		return nil, err
	}
	// From here on the syntax is known to be right, so that skipping over a
	// value needs no more than counting brackets outside strings.
	rest := trimSpace(body)
	if rest[0] != '{' {
		return nil, fmt.Errorf("%w: not an object", ErrMalformed)
	}
	f := FieldMap{}
	for rest = trimSpace(rest[1:]); rest[0] != '}'; {
		n := valueLen(rest)
		k, err := name(rest[:n])
		if err != nil {
			return nil, fmt.Errorf("%w: %v", ErrMalformed, err)
		}
		if _, dup := f[k]; dup {
			return nil, fmt.Errorf("%w: duplicate key %s", ErrMalformed, quote(k))
		}
		rest = trimSpace(rest[n:])
		rest = trimSpace(rest[1:]) // the colon
		n = valueLen(rest)
		f[k] = json.RawMessage(rest[:n:n])
		if rest = trimSpace(rest[n:]); rest[0] == ',' {
			rest = trimSpace(rest[1:])
		}
	}
	return f, nil
}

// trimSpace drops JSON's own white space; bytes.TrimSpace knows more kinds.
func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t' || b[0] == '\r' || b[0] == '\n') {
		b = b[1:]
	}
	return b
}

// name decodes a key. Those of the protocol cost no memory.
func name(raw []byte) (string, error) {
	if len(raw) > 2 {
		if i := slices.IndexFunc(names, func(n string) bool { return n == string(raw[1:len(raw)-1]) }); i >= 0 {
			return names[i], nil
		}
	}
	return unquote(raw)
}

// names are the keys of the messages that a session exchanges most.
var names = []string{"type", "command_id", "tool", "params", "deadline_ms", "exit_code", "stdout", "stderr", "evidence_hash",
	"query_id", "query_kind", "ts", "result", "count", "reason", "epoch",
	"version", "agent_sha256", "pid", "vm", "arch", "tools"}

// valueLen is the length of the value that begins valid JSON.
func valueLen(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			for i++; b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 { // the end of what encloses a number or a literal
				return i
			}
			depth--
		case ',', ' ', '\t', '\r', '\n', ':':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(b)
}

func missing(key string) error { return fmt.Errorf("%w: %s is missing", ErrMalformed, key) }

func quote(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strconv.QuoteToASCII(s)
}

// take removes and returns the value of key; nil when it is absent and need not
// be there.
func (f FieldMap) take(key string, required bool) (json.RawMessage, error) {
	raw, ok := f[key]
	if !ok {
		if required {
			return nil, missing(key)
		}
		return nil, nil
	}
	delete(f, key)
	if string(raw) == "null" {
		return nil, fmt.Errorf("%w: %s is null", ErrMalformed, key)
	}
	return raw, nil
}

func wrongType(key string) error {
	return fmt.Errorf("%w: %s has the wrong type", ErrMalformed, key)
}

func (f FieldMap) value(key string, into any, required bool) error {
	raw, err := f.take(key, required)
	if raw == nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return wrongType(key)
	}
	return nil
}

// unquote decodes a string that is known to be valid JSON. Most have no escape,
// and a megabyte of text need not go through the general decoder.
func unquote(raw []byte) (s string, err error) {
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	err = json.Unmarshal(raw, &s)
	return s, err
}

// String returns the string under key, and false when there is none.
func (f FieldMap) String(key string) (string, bool) {
	s, err := unquote(f[key])
	return s, err == nil && f[key][0] == '"'
}

func (f FieldMap) str(key string, required bool) (string, error) {
	raw, err := f.take(key, required)
	if raw == nil {
		return "", err
	}
	s, err := unquote(raw)
	if err != nil {
		return "", wrongType(key)
	}
	return s, nil
}

// field says where the string under a key goes.
type field struct {
	key  string
	into *string
}

func (f FieldMap) strs(required bool, fields ...field) error {
	for _, x := range fields {
		s, err := f.str(x.key, required)
		if err != nil {
			return err
		}
		*x.into = s
	}
	return nil
}

// strings decodes an array of strings.
func (f FieldMap) strings(key string, into *[]string, required bool) error {
	raw, err := f.take(key, required)
	if raw == nil {
		return err
	}
	if raw[0] != '[' {
		return wrongType(key)
	}
	// The elements share one copy of the array's text.
	list, all := make([]string, 0, min(32, 1+bytes.Count(raw, []byte{','}))), string(raw)
	for rest := trimSpace(raw[1:]); rest[0] != ']'; {
		n := valueLen(rest)
		s, err := "", error(nil)
		if bytes.IndexByte(rest[:n], '\\') < 0 && n >= 2 {
			at := len(raw) - len(rest)
			s = all[at+1 : at+n-1]
		} else {
			s, err = unquote(rest[:n])
		}
		if err != nil || rest[0] != '"' {
			return wrongType(key)
		}
		list = append(list, s)
		if rest = trimSpace(rest[n:]); rest[0] == ',' {
			rest = trimSpace(rest[1:])
		}
	}
	*into = list
	return nil
}

func (f FieldMap) boolean(key string, into *bool, required bool) error {
	raw, err := f.take(key, required)
	switch {
	case raw == nil:
		return err
	case string(raw) == "true", string(raw) == "false":
		*into = raw[0] == 't'
		return nil
	}
	return wrongType(key)
}

func (f FieldMap) integer(key string, into *int, required bool) error {
	n := int64(*into)
	err := f.int64(key, &n, required)
	if int64(int(n)) != n {
		return wrongType(key)
	}
	*into = int(n)
	return err
}

// int64 refuses 1.0 and 1e3 as well.
func (f FieldMap) int64(key string, into *int64, required bool) error {
	raw, err := f.take(key, required)
	if raw == nil {
		return err
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return wrongType(key)
	}
	*into = n
	return nil
}

func (f FieldMap) rest() error {
	for k := range f {
		return fmt.Errorf("%w: unknown key %s", ErrMalformed, quote(k))
	}
	return nil
}
