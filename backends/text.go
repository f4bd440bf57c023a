package backends

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Text is bytes that came out of a sandbox. They are hostile: they may hold
// terminal escapes, workflow commands, forged reports or 16 MiB of NUL. So Text
// is not a string. Printing or marshalling one yields a short quoted preview;
// package untrusted renders more of it for each kind of output; Bytes gives the
// raw bytes to code that compares or hashes them.
type Text struct {
	b     []byte
	total int64
	sum   [sha256.Size]byte // when cut
	cut   bool
}

// previewBytes is how much of a Text its String shows.
const previewBytes = 200

// NewText wraps all of what a guest sent. It does not copy b.
func NewText(b []byte) Text { return Text{b: b, total: int64(len(b))} }

// NewTruncatedText wraps the beginning of a longer output: b is what was kept,
// total the full length and sum the SHA-256 of all of it, as the agent said.
func NewTruncatedText(b []byte, total int64, sum [sha256.Size]byte) Text {
	return Text{b: b, total: total, sum: sum, cut: true}
}

// Bytes returns the raw bytes. The caller must not print them.
func (t Text) Bytes() []byte { return t.b }

// Len is the length of the whole output, also of the part that was cut off.
func (t Text) Len() int64 { return t.total }

// Truncated reports whether Bytes holds less than the guest produced.
func (t Text) Truncated() bool { return t.cut }

// SHA256 is the hash of the whole output in hex. For a truncated Text it is the
// agent's word.
func (t Text) SHA256() string {
	sum := t.sum
	if !t.cut {
		sum = sha256.Sum256(t.b)
	}
	return hex.EncodeToString(sum[:])
}

// String returns a quoted, ASCII-only, bounded preview.
func (t Text) String() string {
	b, more := t.b, ""
	if len(b) > previewBytes {
		b = b[:previewBytes]
	}
	if int64(len(b)) < t.total {
		more = fmt.Sprintf(" (%d of %d bytes, sha256 %s)", len(b), t.total, t.SHA256())
	}
	return `"` + wire.Escape(b) + `"` + more
}

// MarshalJSON writes the preview with the length and hash of the whole.
func (t Text) MarshalJSON() ([]byte, error) {
	b := t.b
	if len(b) > previewBytes {
		b = b[:previewBytes]
	}
	return json.Marshal(struct {
		Preview   string `json:"preview"`
		Length    int64  `json:"length"`
		SHA256    string `json:"sha256"`
		Truncated bool   `json:"truncated"`
	}{wire.Escape(b), t.total, t.SHA256(), t.cut || int64(len(b)) < t.total})
}
