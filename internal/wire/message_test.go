package wire

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const goodResult = `{"type":"ToolResult","command_id":"c","exit_code":0,"stdout":"o","stderr":"e","evidence_hash":"h"}`

func TestDecodeRefusals(t *testing.T) {
	with := func(extra string) string { return strings.TrimSuffix(goodResult, "}") + "," + extra + "}" }
	exit := func(v string) string { return strings.Replace(goodResult, `"exit_code":0`, `"exit_code":`+v, 1) }
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := map[string]string{
		"empty":                          ``,
		"white space":                    ` `,
		"array":                          `[]`,
		"string":                         `"x"`,
		"number":                         `1`,
		"null":                           `null`,
		"unclosed":                       `{`,
		"closed too early":               `}`,
		"no type":                        `{}`,
		"type of a number":               `{"type":1}`,
		"unknown type":                   `{"type":"CommandResult"}`,
		"trailing bytes":                 goodResult + `x`,
		"two objects":                    goodResult + goodResult,
		"trailing comma":                 strings.TrimSuffix(goodResult, "}") + ",}",
		"NUL after":                      goodResult + "\x00",
		"invalid UTF-8":                  strings.Replace(goodResult, `"o"`, "\"\xff\"", 1),
		"overlong UTF-8":                 strings.Replace(goodResult, `"o"`, "\"\xc0\x80\"", 1),
		"raw control byte":               strings.Replace(goodResult, `"o"`, "\"\x01\"", 1),
		"duplicate key":                  with(`"exit_code":1`),
		"duplicate key, escaped":         with(`"exit_\u0063ode":1`),
		"duplicate type":                 with(`"type":"ErrorEvent"`),
		"shadowed case":                  with(`"EXIT_CODE":1`),
		"shadowed case, Kelvin sign":     with(`"stdout\u212a":""`),
		"only shadowed":                  strings.Replace(goodResult, `"exit_code"`, `"Exit_Code"`, 1),
		"request_id":                     with(`"request_id":"other"`),
		"unknown key":                    with(`"x":null`),
		"missing exit_code":              strings.Replace(goodResult, `"exit_code":0,`, ``, 1),
		"exit_code float":                exit(`0.0`),
		"exit_code exponent":             exit(`1e2`),
		"exit_code string":               exit(`"0"`),
		"exit_code null":                 exit(`null`),
		"exit_code bool":                 exit(`false`),
		"exit_code object":               exit(`{}`),
		"exit_code huge":                 exit(`99999999999999999999`),
		"exit_code leading zero":         exit(`00`),
		"missing command_id":             strings.Replace(goodResult, `"command_id":"c",`, ``, 1),
		"command_id number":              strings.Replace(goodResult, `"c"`, `1`, 1),
		"missing evidence_hash":          strings.Replace(goodResult, `,"evidence_hash":"h"`, ``, 1),
		"timed_out string":               with(`"timed_out":"true"`),
		"stdout_length float":            with(`"stdout_length":1.5`),
		"too deep":                       with(`"x":` + nested(MaxDepth)),
		"much too deep":                  nested(100_000),
		"response without result":        `{"type":"GuestResponse","query_id":"q"}`,
		"response of another id type":    `{"type":"GuestResponse","query_id":7,"result":{}}`,
		"dispatch params array":          `{"type":"ToolDispatch","command_id":"c","tool":"t","params":[],"deadline_ms":1}`,
		"dispatch params null":           `{"type":"ToolDispatch","command_id":"c","tool":"t","params":null,"deadline_ms":1}`,
		"dispatch without deadline":      `{"type":"ToolDispatch","command_id":"c","tool":"t","params":{}}`,
		"query without kind":             `{"type":"GuestQuery","query_id":"q","ts":""}`,
		"reset entropy not base64":       `{"type":"ResetSignal","reason":"r","entropy":"!"}`,
		"ack without epoch":              `{"type":"ResetAck"}`,
		"ack applied of numbers":         `{"type":"ResetAck","epoch":"e","applied":[1]}`,
		"ack applied not an array":       `{"type":"ResetAck","epoch":"e","applied":"x"}`,
		"ack applied of arrays":          `{"type":"ResetAck","epoch":"e","applied":["x",["y"]]}`,
		"timed_out number":               with(`"timed_out":1`),
		"stdout object":                  strings.Replace(goodResult, `"o"`, `{}`, 1),
		"event without code":             `{"type":"ErrorEvent","message":"m"}`,
		"hello without tools":            `{"type":"Hello","version":1,"agent_sha256":"","pid":1,"vm":false,"arch":"","epoch":""}`,
		"hello with a version of a kind": `{"type":"Hello","version":"1","agent_sha256":"","pid":1,"vm":false,"arch":"","epoch":"","tools":[]}`,
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := Decode([]byte(body))
			require.ErrorIs(t, err, ErrMalformed)
			require.Nil(t, m)
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	m, err := Decode([]byte(" \t\r\n" + strings.Replace(goodResult, `"o"`, `"\u0000 \"}],{[\\"`, 1) + "\n "))
	require.NoError(t, err)
	r := m.(*ToolResult)
	require.Equal(t, "\x00 \"}],{[\\", r.Stdout)
	require.Equal(t, "e", r.Stderr)

	m, err = Decode([]byte(`{"type":"ToolDispatch","command_id":"c","tool":"t","deadline_ms":1}`))
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(m.(*ToolDispatch).Params))

	// Brackets inside strings do not nest.
	_, err = Decode([]byte(strings.Replace(goodResult, `"o"`, `"`+strings.Repeat("[", 1000)+`"`, 1)))
	require.NoError(t, err)
}

// text draws strings that JSON can carry: valid UTF-8.
func text() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00", `"\{}[]`, "\u2028\u202e", "<&>", "\ufffd"}))
}

func TestMessagesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := func(label string) string { return text().Draw(t, label) }
		msgs := []any{
			&Hello{Type: TypeHello, Version: rapid.Int().Draw(t, "v"), AgentSHA256: s("sum"), PID: rapid.Int().Draw(t, "pid"), VM: rapid.Bool().Draw(t, "vm"),
				Arch: s("arch"), BootID: s("boot"), Epoch: s("epoch"), Tools: rapid.SliceOfN(text(), 1, 5).Draw(t, "tools")},
			&ToolDispatch{Type: TypeToolDispatch, CommandID: s("id"), Tool: s("tool"), Params: json.RawMessage(`{"a":[1,{"b":"\n"}]}`), DeadlineMS: rapid.Int64().Draw(t, "d")},
			&ToolResult{Type: TypeToolResult, CommandID: s("id"), ExitCode: rapid.Int().Draw(t, "exit"), Stdout: s("out"), Stderr: s("err"), EvidenceHash: s("hash"),
				StdoutEncoding: s("oe"), StderrEncoding: s("ee"), StdoutLength: rapid.Int64().Draw(t, "ol"), StderrLength: rapid.Int64().Draw(t, "el"),
				StdoutSHA256: s("os"), StderrSHA256: s("es"), TimedOut: rapid.Bool().Draw(t, "to")},
			&GuestQuery{Type: TypeGuestQuery, QueryID: s("q"), QueryKind: s("kind"), TS: s("ts")},
			&GuestResponse{Type: TypeGuestResponse, QueryID: s("q"), Result: json.RawMessage(`[{"x":null}]`)},
			&ResetSignal{Type: TypeResetSignal, Reason: s("r"), Epoch: s("e"), UnixNano: rapid.Int64().Draw(t, "ns"), Entropy: rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "ent")},
			&ResetAck{Type: TypeResetAck, Epoch: s("e"), Applied: rapid.SliceOfN(text(), 1, 3).Draw(t, "applied")},
			&ErrorEvent{Type: TypeErrorEvent, Code: s("c"), Message: s("m")},
		}
		m := rapid.SampledFrom(msgs).Draw(t, "message")
		b, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		require.Equal(t, m, got)
	})
}

func TestOutputRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.Byte()).Draw(t, "output")
		var text, encoding string
		SetOutput(&text, &encoding, in)
		if !utf8.ValidString(text) {
			t.Fatal("the text is not UTF-8")
		}
		out, err := Output(text, encoding)
		if err != nil || !bytes.Equal(in, out) {
			t.Fatalf("%x became %x, %v", in, out, err)
		}
	})
	_, err := Output("x", "rot13")
	require.ErrorIs(t, err, ErrMalformed)
}

func TestEvidenceHashIsFramed(t *testing.T) {
	require.NotEqual(t, EvidenceHash([]byte("ab"), []byte("c")), EvidenceHash([]byte("a"), []byte("bc")))
	require.NotEqual(t, EvidenceHash([]byte("a"), nil), EvidenceHash(nil, []byte("a")))
	// printf '\0\0\0\0\0\0\0\1a\0\0\0\0\0\0\0\0' | sha256sum
	require.Equal(t, "6aa98e17c109dd8e2ae23a478ceb48e193c730289ba48d741388a3cc8b38ef4f", EvidenceHash([]byte("a"), nil))
	// (printf '\0\0\0\0\0\0\1\0'; head -c 256 /dev/zero; printf '\0\0\0\0\0\0\0\1a') | sha256sum
	require.Equal(t, "d0eba422fe86807c427860db630a1060724da81aee7ede645622ab186ad63b5b", EvidenceHash(make([]byte, 256), []byte("a")))
}

// Fields has to agree with encoding/json on what an object is and holds.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(goodResult))
	f.Add([]byte(`{"type":"ErrorEvent","code":"\ud800","message":"\\\""}`))
	f.Add([]byte(`{"a" : [ 1 , {"b":"]"} ] , "c" :-1.5e3,"":null }`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		fields, err := Fields(b)
		var std map[string]json.RawMessage
		stdErr := json.Unmarshal(b, &std)
		if err == nil {
			if stdErr != nil {
				t.Fatalf("Fields accepts what encoding/json refuses: %v", stdErr)
			}
			if len(fields) != len(std) {
				t.Fatalf("%d fields, encoding/json has %d", len(fields), len(std))
			}
			for k, v := range fields {
				if !bytes.Equal(v, std[k]) {
					t.Fatalf("field %q is %q, encoding/json has %q", k, v, std[k])
				}
			}
		}
		m, err := Decode(b)
		if !bytes.Equal(in, b) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if m != nil {
				t.Fatal("a message beside an error")
			}
			return
		}
		again, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("%q does not decode again: %v", again, err)
		}
	})
}
