//go:build linux

package canary

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	me = backends.Credential{UID: os.Geteuid(), GID: os.Getegid()}
	lo = netip.MustParseAddr("127.0.0.1")
)

func listeners(t *testing.T) []*Listener {
	t.Helper()
	starts := []func() (*Listener, error){
		func() (*Listener, error) { return ListenTCP(lo) }, func() (*Listener, error) { return ListenUDP(lo) },
		func() (*Listener, error) { return ListenDNS(lo) }, ListenAbstract,
		func() (*Listener, error) { return ListenUnix(t.TempDir()) },
	}
	if os.Geteuid() == 0 {
		starts = append(starts, func() (*Listener, error) { return ListenICMP(lo) }, func() (*Listener, error) { return ListenPacket(lo) })
	}
	var out []*Listener
	for _, start := range starts {
		l, err := start()
		require.NoError(t, err)
		t.Cleanup(l.Stop)
		out = append(out, l)
	}
	return out
}

func TestListenerSeesItsTokenAndNoticesWhenItIsStopped(t *testing.T) {
	for _, l := range listeners(t) {
		t.Run(l.Kind(), func(t *testing.T) {
			token := l.Token()
			require.NotEqual(t, token, l.Token())
			l.Expect(token)
			require.Zero(t, l.Seen(token))
			require.NoError(t, l.self(t.Context(), token))
			require.NoError(t, l.SelfCheck(t.Context()))
			require.Equal(t, 1, l.Seen(token))
			require.Zero(t, l.Anonymous())
			l.Stop()
			ctx, cancel := context.WithTimeout(t.Context(), settleTimeout/4)
			defer cancel()
			require.Error(t, l.SelfCheck(ctx))
		})
	}
}

func TestUnknownVisitsAreAnonymousAndUnanswered(t *testing.T) {
	for _, l := range listeners(t) {
		t.Run(l.Kind(), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), settleTimeout/4)
			defer cancel()
			_ = l.self(ctx, l.Token())
			require.NoError(t, l.SelfCheck(t.Context()))
			require.Equal(t, 1, l.Anonymous())
		})
	}
}

func TestSocketCanaryFitsAnyDirectory(t *testing.T) {
	t.Setenv("TMPDIR", "/tmp")
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	require.NoError(t, os.Mkdir(dir, 0o700))
	l, err := ListenUnix(dir)
	require.NoError(t, err)
	require.NoError(t, l.SelfCheck(t.Context()))
	l.Stop()
	require.NoDirExists(t, filepath.Dir(l.Path))
}

func TestSharedMediaIgnoreOthers(t *testing.T) {
	for _, l := range listeners(t) {
		if l.prefix == "" {
			continue
		}
		require.NoError(t, l.self(t.Context(), NewToken()))
		require.NoError(t, l.SelfCheck(t.Context()))
		require.Zero(t, l.Anonymous(), l.Kind())
	}
}

func TestSilentVisitorIsAnonymous(t *testing.T) {
	l, err := ListenTCP(lo)
	require.NoError(t, err)
	defer l.Stop()
	c, err := net.Dial("tcp", netip.AddrPortFrom(lo, uint16(l.Port)).String())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, l.SelfCheck(t.Context()))
	require.Equal(t, 1, l.Anonymous())
}

func TestCanariesAreNeverBoundToTheWorld(t *testing.T) {
	for _, a := range []string{"0.0.0.0", "::", "224.0.0.1"} {
		for _, start := range []func(netip.Addr) (*Listener, error){ListenTCP, ListenUDP, ListenDNS, ListenICMP, ListenPacket} {
			_, err := start(netip.MustParseAddr(a))
			require.ErrorContains(t, err, "not bound")
		}
	}
}

func TestSecretWatch(t *testing.T) {
	type act func(t *testing.T, s *Secret)
	for name, c := range map[string]struct {
		do   act
		want string
	}{
		"nothing": {func(*testing.T, *Secret) {}, "untouched"},
		"read": {func(t *testing.T, s *Secret) {
			_, err := os.ReadFile(s.Path)
			require.NoError(t, err)
		}, "opened, read"},
		"append": {func(t *testing.T, s *Secret) {
			f, err := os.OpenFile(s.Path, os.O_WRONLY|os.O_APPEND, 0)
			require.NoError(t, err)
			_, err = io.WriteString(f, "x")
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}, "opened, changed"},
		"remove": {func(t *testing.T, s *Secret) { require.NoError(t, os.Remove(s.Path)) }, "changed, moved or removed"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewSecret(t.TempDir(), me)
			require.NoError(t, err)
			defer s.Stop()
			c.do(t, s)
			for range 2 { // what was seen stays seen
				a, err := s.Observe()
				require.NoError(t, err)
				require.Equal(t, c.want, a.String())
				require.NoError(t, s.SelfCheck(t.Context()))
			}
		})
	}
	s, err := NewSecret(t.TempDir(), me)
	require.NoError(t, err)
	s.Stop()
	require.Error(t, s.SelfCheck(t.Context()))
	_, err = s.Observe()
	require.Error(t, err)
}

func TestProcess(t *testing.T) {
	start := func(t *testing.T) *Process {
		p, err := StartProcess(me)
		require.NoError(t, err)
		t.Cleanup(p.Stop)
		return p
	}
	t.Run("untouched", func(t *testing.T) {
		p := start(t)
		for range 3 {
			require.NoError(t, p.SelfCheck(t.Context()))
			s, err := p.Observe()
			require.NoError(t, err)
			require.Equal(t, "alive and untouched", s.String())
		}
		mem := make([]byte, TokenLen)
		n, err := unix.ProcessVMReadv(p.PID, []unix.Iovec{{Base: &mem[0], Len: uint64(len(mem))}}, []unix.RemoteIovec{{Base: uintptr(p.SecretAddr), Len: len(mem)}}, 0)
		require.NoError(t, err)
		require.Equal(t, p.EnvSecret, string(mem[:n]))
	})
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			p := start(t)
			require.NoError(t, syscall.Kill(p.PID, sig))
			require.Eventually(t, func() bool {
				s, err := p.Observe()
				return err == nil && !s.Alive && s.Signal == sig && s.Harmed()
			}, settleTimeout, settleTimeout/1000)
			require.Error(t, p.SelfCheck(t.Context()))
		})
	}
	t.Run("looked at while it ends", func(t *testing.T) {
		for range 50 {
			p := start(t)
			require.NoError(t, syscall.Kill(p.PID, syscall.SIGTERM))
			for {
				s, err := p.Observe()
				require.NoError(t, err)
				require.False(t, s.Touched)
				if !s.Alive {
					break
				}
			}
			p.Stop()
		}
	})
	t.Run("stopped and continued by another", func(t *testing.T) {
		p := start(t)
		require.NoError(t, syscall.Kill(p.PID, syscall.SIGSTOP))
		require.NoError(t, syscall.Kill(p.PID, syscall.SIGCONT))
		require.Eventually(t, func() bool { s, err := p.Observe(); return err == nil && s.Woken }, settleTimeout, settleTimeout/1000)
	})
	t.Run("memory changed", func(t *testing.T) {
		p := start(t)
		mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID), os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = mem.WriteAt([]byte("x"), int64(p.TouchAddr))
		require.NoError(t, err)
		require.NoError(t, mem.Close())
		s, err := p.Observe()
		require.NoError(t, err)
		require.True(t, s.Touched)
	})
	t.Run("stopped by the harness", func(t *testing.T) {
		p := start(t)
		p.Stop()
		_, err := p.Observe()
		require.Error(t, err)
		require.Error(t, p.SelfCheck(t.Context()))
	})
}

func TestShm(t *testing.T) {
	s, err := NewShm(me)
	require.NoError(t, err)
	require.NoError(t, s.SelfCheck(t.Context()))
	s.Stop()
	require.Error(t, s.SelfCheck(t.Context()))
}

func TestLeakedFindsEveryEncoding(t *testing.T) {
	token := "0123456789abcdef0f1e2d3c4b5a6978"
	zip := func(make func(w io.Writer) io.WriteCloser) []byte {
		var b bytes.Buffer
		w := make(&b)
		_, err := io.WriteString(w, "some text before "+token)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return b.Bytes()
	}
	gz := zip(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })
	for name, out := range map[string][]byte{
		"raw": []byte("x" + token), "upper": []byte(strings.ToUpper(token)), "spaced": []byte(strings.Join(strings.Split(token, ""), " ")),
		"half": []byte(token[:14]), "reversed": []byte(reverse(token)), "rot13": []byte(rot13(token)),
		"hex": []byte(hex.EncodeToString([]byte(token))), "HEX": []byte(strings.ToUpper(hex.EncodeToString([]byte(token)))),
		"base64 0": []byte(base64.StdEncoding.EncodeToString([]byte(token))), "base64 1": []byte(base64.StdEncoding.EncodeToString([]byte("\xff" + token))),
		"base64 2": []byte(base64.URLEncoding.EncodeToString([]byte("\xff\xfe" + token))), "utf-16le": []byte(strings.Join(strings.Split(token, ""), "\x00") + "\x00"), "utf-16be": []byte("\x00" + strings.Join(strings.Split(token, ""), "\x00")),
		"base64 twice": []byte(base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(token))))),
		"gzip":         append([]byte("head "), gz...), "gzip in base64": []byte(base64.StdEncoding.EncodeToString(gz)),
		"zlib":    zip(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }),
		"deflate": zip(func(w io.Writer) io.WriteCloser { f, _ := flate.NewWriter(w, 9); return f }),
	} {
		require.NotEmpty(t, Leaked(token, nil, out), name)
		require.Empty(t, Leaked(NewToken(), nil, out), name)
	}
	require.NotEmpty(t, Leaked(token, []byte(token[:8]), []byte(token[8:16]), []byte(token[16:])), "split")
	require.NotEmpty(t, Leaked(token, []byte(token[16:]), []byte(token[8:16]), []byte(token[:8])), "split backwards")
}

func TestLeakedHasNoFalseAlarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		out := rapid.SliceOfN(rapid.Byte(), 0, 4096).Draw(t, "out")
		others := fmt.Sprintf("%s %s %s", NewToken(), NewToken(), NewToken())
		require.Empty(t, Leaked(NewToken(), out, []byte(others)))
	})
}

func TestLeakedFindsATokenAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.SliceOf(rapid.Byte()).Draw(t, "before")
		after := rapid.SliceOf(rapid.Byte()).Draw(t, "after")
		token := NewToken()
		out := append(append(bytes.Clone(before), token...), after...)
		require.NotEmpty(t, Leaked(token, out))
		require.NotEmpty(t, Leaked(token, []byte(base64.StdEncoding.EncodeToString(out))))
	})
}

func TestScanTellsTokensApart(t *testing.T) {
	a, b, c := NewToken(), NewToken(), NewToken()
	require.Equal(t, []string{"", "raw", "base64"}, Scan([]string{a, b, c}, []byte("x "+b), []byte(base64.StdEncoding.EncodeToString([]byte("y "+c)))))
}

func BenchmarkScan(b *testing.B) {
	var tokens []string
	for range 24 {
		tokens = append(tokens, NewToken())
	}
	out := []byte(strings.Repeat(`{"case":"signal","data":"`+base64.StdEncoding.EncodeToString([]byte(NewToken()))+`","x":"`+NewToken()+`"}`, 100))
	b.SetBytes(int64(len(out)))
	for b.Loop() {
		Scan(tokens, out, nil)
	}
}

func FuzzTokenOfQuery(f *testing.F) {
	f.Add(attack.QueryDNS(1, NewToken()))
	f.Fuzz(func(t *testing.T, b []byte) {
		if token := attack.TokenOfQuery(b); token != "" {
			require.Equal(t, token, attack.TokenOfQuery(attack.QueryDNS(1, token)))
			attack.AnswerDNS(b)
		}
	})
}
