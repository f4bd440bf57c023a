package wire

import "testing"

// The messages of one call.
var (
	benchDispatch = &ToolDispatch{Type: TypeToolDispatch, CommandID: "0123456789abcdef0123456789abcdef", Tool: "noop", Params: []byte("{}"), DeadlineMS: 30000}
	benchResult   = &ToolResult{Type: TypeToolResult, CommandID: "0123456789abcdef0123456789abcdef", EvidenceHash: EvidenceHash(nil, nil)}
)

func BenchmarkEncode(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range []any{benchDispatch, benchResult} {
			if _, err := Encode(m); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	var bodies [][]byte
	for _, m := range []any{benchDispatch, benchResult} {
		body, err := Encode(m)
		if err != nil {
			b.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, body := range bodies {
			if _, err := Decode(body); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkEvidenceHash(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		EvidenceHash([]byte("out"), []byte("err"))
	}
}
