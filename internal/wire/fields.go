package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// FieldMap is the top level of a JSON object with its values undecoded.
type FieldMap map[string]json.RawMessage

// Fields splits a JSON object into its fields. It refuses invalid UTF-8, nesting
// over MaxDepth, duplicate keys and trailing bytes. The values alias body.
func Fields(body []byte) (FieldMap, error) {
	f := FieldMap{}
	err := split(body, func(key, value span) error {
		k, err := unquote(body[key.from:key.to])
		if err != nil {
			return fmt.Errorf("%w: %v", ErrMalformed, err)
		}
		if _, dup := f[k]; dup {
			return duplicate(k)
		}
		f[k] = json.RawMessage(body[value.from:value.to:value.to])
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// String returns the string under key, and false when there is none.
func (f FieldMap) String(key string) (string, bool) {
	s, err := unquote(f[key])
	return s, err == nil && f[key][0] == '"'
}

// fields are those of one message. Unlike a FieldMap they are few, and cost one
// copy of the message, which all strings in it share.
type fields struct {
	body []byte
	text string // body, which the strings are pieces of
	list [maxFields]struct {
		key   string
		value span
	}
	left uint32 // a bit for each entry of list that was not taken yet
}

// maxFields is more than any message has.
const maxFields = 16

func (f *fields) parse(body []byte) error {
	f.body, f.text = body, string(body)
	n := 0
	return split(body, func(key, value span) error {
		k, err := f.unquote(key)
		if err != nil {
			return fmt.Errorf("%w: %v", ErrMalformed, err)
		}
		for i := range f.list[:n] {
			if f.list[i].key == k {
				return duplicate(k)
			}
		}
		if n == maxFields {
			return fmt.Errorf("%w: more than %d keys", ErrMalformed, maxFields)
		}
		f.list[n].key, f.list[n].value = k, value
		f.left |= 1 << n
		n++
		return nil
	})
}

// unquote decodes a string, which most often is a piece of the text.
func (f *fields) unquote(at span) (string, error) {
	if raw := f.body[at.from:at.to]; raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return unquote(raw)
	}
	return f.text[at.from+1 : at.to-1], nil
}

func duplicate(key string) error {
	return fmt.Errorf("%w: duplicate key %s", ErrMalformed, quote(key))
}

func missing(key string) error { return fmt.Errorf("%w: %s is missing", ErrMalformed, key) }

func quote(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return strconv.QuoteToASCII(s)
}

// find removes and returns the value of key.
func (f *fields) find(key string) (span, bool) {
	for left := f.left; left != 0; left &= left - 1 {
		i := bits.TrailingZeros32(left)
		if f.list[i].key == key {
			f.left &^= 1 << i
			return f.list[i].value, true
		}
	}
	return span{}, false
}

// take is find for a value that must not be null; an empty span says that it is
// absent and need not be there.
func (f *fields) take(key string, required bool) (span, error) {
	at, ok := f.find(key)
	switch {
	case !ok && required:
		return span{}, missing(key)
	case ok && f.text[at.from:at.to] == "null":
		return span{}, fmt.Errorf("%w: %s is null", ErrMalformed, key)
	}
	return at, nil
}

func wrongType(key string) error {
	return fmt.Errorf("%w: %s has the wrong type", ErrMalformed, key)
}

func (f *fields) value(key string, into any, required bool) error {
	at, err := f.take(key, required)
	if at.empty() {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(f.body[at.from:at.to]))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
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

func (f *fields) str(key string, required bool) (string, error) {
	at, err := f.take(key, required)
	if at.empty() {
		return "", err
	}
	s, err := f.unquote(at)
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

func (f *fields) strs(required bool, list ...field) error {
	for _, x := range list {
		s, err := f.str(x.key, required)
		if err != nil {
			return err
		}
		*x.into = s
	}
	return nil
}

// strings decodes an array of strings.
func (f *fields) strings(key string, into *[]string, required bool) error {
	at, err := f.take(key, required)
	if at.empty() {
		return err
	}
	if f.body[at.from] != '[' {
		return wrongType(key)
	}
	list := make([]string, 0, min(32, 1+strings.Count(f.text[at.from:at.to], ",")))
	s := syntax{b: f.body[:at.to], i: at.from + 1}
	ok := s.list(']', 1, func(int) bool {
		from := s.i
		if !s.text() {
			return false
		}
		text, err := f.unquote(span{from, s.i})
		list = append(list, text)
		return err == nil
	})
	if !ok {
		return wrongType(key)
	}
	*into = list
	return nil
}

func (f *fields) boolean(key string, into *bool, required bool) error {
	at, err := f.take(key, required)
	if at.empty() {
		return err
	}
	switch f.text[at.from:at.to] {
	case "true", "false":
		*into = f.body[at.from] == 't'
		return nil
	}
	return wrongType(key)
}

func (f *fields) integer(key string, into *int, required bool) error {
	n := int64(*into)
	err := f.int64(key, &n, required)
	if int64(int(n)) != n {
		return wrongType(key)
	}
	*into = int(n)
	return err
}

// int64 refuses 1.0 and 1e3 as well.
func (f *fields) int64(key string, into *int64, required bool) error {
	at, err := f.take(key, required)
	if at.empty() {
		return err
	}
	n, err := strconv.ParseInt(f.text[at.from:at.to], 10, 64)
	if err != nil {
		return wrongType(key)
	}
	*into = n
	return nil
}

func (f *fields) rest() error {
	if f.left == 0 {
		return nil
	}
	return fmt.Errorf("%w: unknown key %s", ErrMalformed, quote(f.list[bits.TrailingZeros32(f.left)].key))
}
