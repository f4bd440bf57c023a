package payload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

var (
	errOtherAnswer = errors.New("something else than the canary answered")
	errNoName      = os.ErrNotExist
)

// send visits one target and waits for its answer.
func send(ctx context.Context, t attack.EgressTarget) error {
	switch t.Via {
	case attack.ViaTCP, attack.ViaUDP, attack.ViaDNS, attack.ViaICMP, attack.ViaRaw, attack.ViaPacket:
		addr, err := netip.ParseAddr(t.Address)
		if err != nil {
			return err
		}
		return sendIP(ctx, t, netip.AddrPortFrom(addr, uint16(t.Port)))
	case attack.ViaAbstract:
		return stream(ctx, "unix", "@"+t.Address, t.Token)
	case attack.ViaUnix:
		return stream(ctx, "unix", t.Address, t.Token)
	case attack.ViaVsock:
		return vsockSocket()
	case "no-name":
		return errNoName
	}
	return unix.EPROTONOSUPPORT
}

func sendIP(ctx context.Context, t attack.EgressTarget, to netip.AddrPort) error {
	switch t.Via {
	case attack.ViaTCP:
		return stream(ctx, "tcp", to.String(), t.Token)
	case attack.ViaUDP:
		return datagram(ctx, to, []byte(t.Token+"\n"), func(b []byte) bool { return isAnswer(b, t.Token) })
	case attack.ViaDNS:
		return datagram(ctx, to, attack.QueryDNS(7, t.Token), func(b []byte) bool {
			return len(b) > 12 && b[2]&0x80 != 0 && attack.TokenOfQuery(b) == t.Token
		})
	case attack.ViaICMP:
		return echo(ctx, to.Addr(), t.Token)
	case attack.ViaRaw:
		return raw(ctx, to, t.Token)
	}
	return frame(to.Addr(), t.Token)
}

func isAnswer(b []byte, token string) bool {
	return string(bytes.TrimSpace(b)) == attack.EgressAnswer(token)
}

func stream(ctx context.Context, network, address, token string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	bound(ctx, c)
	if _, err := io.WriteString(c, token+"\n"); err != nil {
		return err
	}
	return answer(c, func(b []byte) bool { return isAnswer(b, token) })
}

func datagram(ctx context.Context, to netip.AddrPort, b []byte, ok func([]byte) bool) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	bound(ctx, c)
	if _, err := c.Write(b); err != nil {
		return err
	}
	return answer(c, ok)
}

func answer(r io.Reader, ok func([]byte) bool) error {
	buf := make([]byte, 512)
	n, err := r.Read(buf)
	if err != nil {
		return err
	}
	if !ok(buf[:n]) {
		return errOtherAnswer
	}
	return nil
}

func bound(ctx context.Context, c interface{ SetDeadline(time.Time) error }) {
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d)
	}
}

// vsockSocket only makes a socket. Dialling would reach whatever is behind the
// hypervisor of a guest that is not ours.
func vsockSocket() error {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
