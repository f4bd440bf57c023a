package payload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// echo sends an ICMP echo request and waits for the reply with its token.
func echo(ctx context.Context, to netip.Addr, token string) error {
	c, err := net.ListenIP("ip4:icmp", nil)
	if err != nil {
		return err
	}
	defer c.Close()
	bound(ctx, c)
	if _, err := c.WriteToIP(attack.EchoRequest(9, token), &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	for {
		n, _, err := c.ReadFromIP(buf)
		if err != nil {
			return err
		}
		if n > 8 && buf[0] == 0 && bytes.Contains(buf[8:n], []byte(attack.EchoMark+token)) {
			return nil
		}
	}
}

// raw sends a UDP datagram built by hand on a raw socket, from the port of an
// ordinary socket, and waits on that for the answer.
func raw(ctx context.Context, to netip.AddrPort, token string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp4", to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	bound(ctx, c)
	from := c.LocalAddr().(*net.UDPAddr).AddrPort()
	body := token + "\n"
	udp := make([]byte, 8, 8+len(body))
	binary.BigEndian.PutUint16(udp[0:], from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(body)))
	// Checksum zero means "not computed" in UDP over IPv4 (RFC 768).
	udp = append(udp, body...)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_UDP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, udp, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
		return err
	}
	return answer(c, func(b []byte) bool { return isAnswer(b, token) })
}

// errSent is the best that a frame can end with: no stack answers it.
var errSent = errors.New("sent; nothing answers a frame")

// frame sends one link-layer frame: on the loopback interface for a loopback
// target, else to the station that the kernel already knows for the target.
// It is never broadcast.
func frame(to netip.Addr, token string) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	link := &unix.SockaddrLinklayer{Protocol: attack.NetworkOrder(attack.EtherType), Halen: 6}
	name, hw := "lo", make(net.HardwareAddr, 6)
	if !to.IsLoopback() {
		if name, hw, err = neighbour(to.String()); err != nil {
			return err
		}
	}
	ifc, err := net.InterfaceByName(name)
	if err != nil {
		return unix.ENODEV
	}
	link.Ifindex = ifc.Index
	copy(link.Addr[:], hw)
	if err := unix.Sendto(fd, []byte(attack.EchoMark+token), 0, link); err != nil {
		return err
	}
	return errSent
}

// neighbour looks an address up in the kernel's ARP table.
func neighbour(ip string) (name string, hw net.HardwareAddr, err error) {
	b, err := os.ReadFile("/proc/net/arp")
	if err != nil {
		return "", nil, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 6 && f[0] == ip {
			hw, err := net.ParseMAC(f[3])
			return f[5], hw, err
		}
	}
	return "", nil, unix.EHOSTUNREACH
}

// proveFrame sends a frame on the sandbox's own loopback and reads it back.
func proveFrame(ctx context.Context, token string) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(attack.NetworkOrder(attack.EtherType)))
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "frames")
	defer f.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = f.SetReadDeadline(d)
	}
	if err := frame(netip.AddrFrom4([4]byte{127, 0, 0, 1}), token); !errors.Is(err, errSent) {
		return err
	}
	buf := make([]byte, 2048)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		if bytes.Contains(buf[:n], []byte(token)) {
			return nil
		}
	}
}
