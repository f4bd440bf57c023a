package payload

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// prove sends in the way of t to a listener of our own, on the sandbox's own
// loopback. No interface is brought up for it.
func prove(ctx context.Context, t attack.EgressTarget) error {
	loop := "127.0.0.1"
	if strings.Contains(t.Address, ":") {
		loop = "::1"
	}
	inner := attack.EgressTarget{Via: t.Via, Token: proofToken, Address: loop}
	var stop func()
	var err error
	switch t.Via {
	case attack.ViaTCP, attack.ViaName:
		inner.Via = attack.ViaTCP
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(loop, "0")); err == nil {
			inner.Port, stop = l.Addr().(*net.TCPAddr).Port, serve(l)
		}
	case attack.ViaUDP, attack.ViaDNS, attack.ViaRaw:
		var pc *net.UDPConn
		if pc, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(loop)}); err == nil {
			inner.Port, stop = pc.LocalAddr().(*net.UDPAddr).Port, reply(pc, t.Via)
		}
	case attack.ViaAbstract:
		inner.Address = "bsm-inside-" + t.Token
		var l net.Listener
		if l, err = net.Listen("unix", "@"+inner.Address); err == nil {
			stop = serve(l)
		}
	case attack.ViaUnix:
		var dir string
		if dir, err = writableDir(); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		inner.Address = filepath.Join(dir, "s")
		var l net.Listener
		if l, err = net.Listen("unix", inner.Address); err == nil {
			stop = serve(l)
		}
	case attack.ViaICMP: // the kernel itself answers an echo to loopback
		stop = func() {}
	case attack.ViaPacket:
		return proveFrame(ctx, proofToken)
	case attack.ViaVsock:
		return unix.EOPNOTSUPP
	default:
		return unix.EPROTONOSUPPORT
	}
	if err != nil {
		return err
	}
	defer stop()
	return send(ctx, inner)
}

// writableDir makes a directory wherever the sandbox lets us write.
func writableDir() (string, error) {
	var last error
	for _, base := range []string{os.TempDir(), "/tmp", "/dev/shm", "/run", "/var/tmp", "."} {
		dir, err := os.MkdirTemp(base, "bsm-")
		if err == nil {
			return dir, nil
		}
		last = err
	}
	return "", last
}

func serve(l net.Listener) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			line, err := bufio.NewReader(io.LimitReader(c, 128)).ReadString('\n')
			if err == nil {
				_, _ = io.WriteString(c, attack.EgressAnswer(strings.TrimSpace(line))+"\n")
			}
			_ = c.Close()
		}
	})
	return func() { _ = l.Close(); wg.Wait() }
}

func reply(pc *net.UDPConn, via string) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 512)
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			out := []byte(attack.EgressAnswer(strings.TrimSpace(string(buf[:n]))))
			if via == attack.ViaDNS {
				out = attack.AnswerDNS(buf[:n])
			}
			_, _ = pc.WriteToUDPAddrPort(out, from)
		}
	})
	return func() { _ = pc.Close(); wg.Wait() }
}
