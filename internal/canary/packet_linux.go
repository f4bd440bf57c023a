package canary

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// ListenPacket starts a witness of link-layer frames of our own EtherType on
// every interface of this network namespace. addr only says for which address
// its sub-case is. It needs CAP_NET_RAW.
func ListenPacket(addr netip.Addr) (*Listener, error) {
	if err := bindable(addr); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(attack.NetworkOrder(attack.EtherType)))
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "packet canary")
	l := &Listener{Via: attack.ViaPacket, Addr: addr, visits: newVisits(), close: f.Close}
	l.shared()
	l.self = func(_ context.Context, token string) error { return selfFrame(token) }
	l.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, err := f.Read(buf)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			if body, ok := strings.CutPrefix(string(buf[:n]), attack.EchoMark); ok && l.ours(body) {
				l.visits.record(strings.TrimRight(body, "\x00"))
			}
		}
	})
	return l, nil
}

func selfFrame(token string) error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, ifc := range all {
		if ifc.Flags&net.FlagLoopback == 0 {
			continue
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte(attack.EchoMark+token), 0,
			&unix.SockaddrLinklayer{Protocol: attack.NetworkOrder(attack.EtherType), Ifindex: ifc.Index, Halen: 6})
	}
	return errors.New("no loopback interface")
}
