package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const nonce = "0123456789abcdef"

func sample() []byte {
	r := NewRecorder("net.egress", nonce)
	r.Prove(Outcome("tcp", "connect", "inside", nil))
	r.Try(Outcome("tcp", "connect", "10.0.2.2:1", syscall.ECONNREFUSED))
	r.Try(Attempt{Case: "udp", Op: "send", Result: ResultOK, Data: []byte{0, 0xff}, Detail: "12"})
	r.Fact("kernel", "6.18")
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestPayloadReport(t *testing.T) {
	r, err := ParsePayloadReport(sample(), "net.egress", nonce)
	require.NoError(t, err)
	require.True(t, r.Proved("tcp"))
	require.False(t, r.Proved("udp"), "an attempt is no proof")
	require.Len(t, r.Tried("udp"), 1)
	require.Equal(t, ResultRefused, r.Tried("tcp")[0].Result)
	require.Equal(t, os.Getpid(), r.PID)
}

func TestPayloadReportRefusals(t *testing.T) {
	good := string(sample())
	long := NewRecorder("t", "n")
	long.r.Attempts = make([]Attempt, MaxAttempts+1)
	var b bytes.Buffer
	require.NoError(t, long.Write(&b))
	tests := map[string]struct {
		out, tool, nonce string
		want             error
	}{
		"other nonce":   {good, "net.egress", "other", ErrNotBound},
		"other tool":    {good, "fs.escape", nonce, ErrNotBound},
		"no output":     {"", "net.egress", nonce, ErrNotAPayloadReport},
		"text":          {"tool not found", "net.egress", nonce, ErrNotAPayloadReport},
		"two reports":   {good + good, "net.egress", nonce, ErrNotAPayloadReport},
		"line before":   {"hello\n" + good, "net.egress", nonce, ErrNotAPayloadReport},
		"duplicate key": {strings.Replace(good, `"nonce"`, `"tool":"net.egress","nonce"`, 1), "net.egress", nonce, ErrNotAPayloadReport},
		"wrong type":    {strings.Replace(good, `"uid":`, `"uid":"x","x":`, 1), "net.egress", nonce, ErrNotAPayloadReport},
		"no binding":    {`{"nonce":"` + nonce + `","tool":"net.egress"}`, "net.egress", nonce, ErrNotBound},
		"too many":      {b.String(), "t", "n", ErrNotAPayloadReport},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePayloadReport([]byte(tt.out), tt.tool, tt.nonce)
			require.ErrorIs(t, err, tt.want)
		})
	}
}

// Whatever is changed in a report after it was bound, it is no longer bound.
func TestPayloadReportIsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r PayloadReport
		if err := json.Unmarshal(sample(), &r); err != nil {
			t.Fatal(err)
		}
		str := rapid.StringN(1, 8, -1)
		num := rapid.IntRange(1, 1000)
		flips := map[string]func(){
			"uid":            func() { r.UID += num.Draw(t, "n") },
			"gid":            func() { r.GID += num.Draw(t, "n") },
			"pid":            func() { r.PID += num.Draw(t, "n") },
			"proof case":     func() { r.Proof[0].Case += str.Draw(t, "s") },
			"proof result":   func() { r.Proof[0].Result = ResultDenied },
			"proof gone":     func() { r.Proof = r.Proof[:0] },
			"proof more":     func() { r.Proof = append(r.Proof, Attempt{Case: str.Draw(t, "s"), Result: ResultOK}) },
			"attempt op":     func() { r.Attempts[0].Op += str.Draw(t, "s") },
			"attempt target": func() { r.Attempts[0].Target += str.Draw(t, "s") },
			"attempt result": func() { r.Attempts[0].Result = ResultOK },
			"attempt errno":  func() { r.Attempts[0].Errno += str.Draw(t, "s") },
			"attempt detail": func() { r.Attempts[1].Detail += str.Draw(t, "s") },
			"attempt data":   func() { r.Attempts[1].Data[0] ^= byte(rapid.IntRange(1, 255).Draw(t, "bit")) },
			"attempt order":  func() { r.Attempts[0], r.Attempts[1] = r.Attempts[1], r.Attempts[0] },
			"attempt gone":   func() { r.Attempts = r.Attempts[:1] },
			"fact":           func() { r.Facts["kernel"] += str.Draw(t, "s") },
			"fact more":      func() { r.Facts[str.Draw(t, "s")] = "new" },
			"binding":        func() { r.Binding = strings.Repeat("0", 64) },
		}
		names := make([]string, 0, len(flips))
		for name := range flips {
			names = append(names, name)
		}
		slices.Sort(names)
		name := rapid.SampledFrom(names).Draw(t, "field")
		flips[name]()
		b, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParsePayloadReport(b, "net.egress", nonce); !errors.Is(err, ErrNotBound) {
			t.Fatalf("%s changed: %v", name, err)
		}
	})
}

func TestRecorderIsBounded(t *testing.T) {
	r := NewRecorder("t", "n")
	r.Prove(Attempt{Data: make([]byte, MaxAttemptData+1)})
	for range MaxAttempts + 10 {
		r.Try(Attempt{Case: "c"})
	}
	require.Len(t, r.r.Proof[0].Data, MaxAttemptData)
	require.Len(t, r.r.Attempts, MaxAttempts)
}

type timeout struct{ error }

func (timeout) Timeout() bool { return true }

func TestClassify(t *testing.T) {
	tests := []struct {
		err    error
		result Result
		errno  string
	}{
		{nil, ResultOK, ""},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, ResultDenied, "EACCES"},
		{fmt.Errorf("wrapped: %w", syscall.EPERM), ResultDenied, "EPERM"},
		{syscall.EROFS, ResultDenied, "EROFS"},
		{syscall.ENOSYS, ResultAbsent, "ENOSYS"},
		{syscall.ENOENT, ResultAbsent, "ENOENT"},
		{syscall.EAFNOSUPPORT, ResultAbsent, "EAFNOSUPPORT"},
		{syscall.ENETUNREACH, ResultUnreachable, "ENETUNREACH"},
		{syscall.ECONNREFUSED, ResultRefused, "ECONNREFUSED"},
		{syscall.EINVAL, ResultReached, "EINVAL"},
		{syscall.EFAULT, ResultReached, "EFAULT"},
		{syscall.ETIMEDOUT, ResultTimeout, "ETIMEDOUT"},
		{syscall.ENOMEM, ResultLimited, "ENOMEM"},
		{syscall.EMSGSIZE, ResultError, "EMSGSIZE"},
		{syscall.Errno(9999), ResultError, "errno 9999"},
		{timeout{errors.New("slow")}, ResultTimeout, ""},
		{fs.ErrNotExist, ResultAbsent, ""},
		{fs.ErrPermission, ResultDenied, ""},
		{errors.New("other"), ResultError, ""},
	}
	for _, tt := range tests {
		result, errno := Classify(tt.err)
		require.Equal(t, tt.result, result, "%v", tt.err)
		require.Equal(t, tt.errno, errno, "%v", tt.err)
	}
}

func FuzzParsePayloadReport(f *testing.F) {
	f.Add(sample())
	f.Add([]byte(`{"nonce":"` + nonce + `","tool":"net.egress","binding":""}`))
	f.Add([]byte(`{"nonce":"` + nonce + `","tool":"net.egress","proof":null,"attempts":[{}],"binding":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParsePayloadReport(b, "net.egress", nonce)
		if err != nil {
			if r != nil {
				t.Fatal("a report beside an error")
			}
			return
		}
		if r.Nonce != nonce || r.Tool != "net.egress" || r.Binding != r.binding() || len(r.Attempts) > MaxAttempts {
			t.Fatal("an unbound report was accepted")
		}
	})
}
