package canary

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// ListenUDP starts a canary on a free UDP port of addr.
func ListenUDP(addr netip.Addr) (*Listener, error) {
	return listenDatagram(attack.ViaUDP, addr,
		func(b []byte, token string) []byte { return []byte(attack.EgressAnswer(token) + "\n") },
		func(b []byte) string { return strings.TrimSpace(string(b)) },
		func(token string) []byte { return []byte(token + "\n") },
		func(b []byte, token string) bool {
			return strings.TrimSpace(string(b)) == attack.EgressAnswer(token)
		})
}

// ListenDNS starts a canary resolver on a free UDP port of addr. It answers
// queries for <token>.canary.invalid whose token is expected, and nothing else.
func ListenDNS(addr netip.Addr) (*Listener, error) {
	return listenDatagram(attack.ViaDNS, addr,
		func(b []byte, _ string) []byte { return attack.AnswerDNS(b) },
		attack.TokenOfQuery,
		func(token string) []byte { return attack.QueryDNS(1, token) },
		func(b []byte, token string) bool {
			return len(b) > 12 && b[2]&0x80 != 0 && attack.TokenOfQuery(b) == token
		})
}

func listenDatagram(via string, addr netip.Addr, answer func([]byte, string) []byte, tokenOf func([]byte) string,
	visit func(string) []byte, answered func([]byte, string) bool) (*Listener, error) {
	if err := bindable(addr); err != nil {
		return nil, err
	}
	pc, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return nil, err
	}
	at := pc.LocalAddr().(*net.UDPAddr)
	l := &Listener{Via: via, Addr: addr, Port: at.Port, visits: newVisits(), close: pc.Close}
	l.self = func(ctx context.Context, token string) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "udp", at.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if d, ok := ctx.Deadline(); ok {
			_ = c.SetDeadline(d)
		}
		if _, err := c.Write(visit(token)); err != nil {
			return err
		}
		buf := make([]byte, maxVisit)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		if !answered(buf[:n], token) {
			return errors.New("something else answered")
		}
		return nil
	}
	l.done.Go(func() {
		buf := make([]byte, maxVisit)
		for {
			n, from, err := pc.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // an ICMP error of an earlier answer; the socket lives on
				continue
			}
			token := tokenOf(buf[:n])
			if l.visits.record(token) {
				_, _ = pc.WriteToUDPAddrPort(answer(buf[:n], token), from)
			}
		}
	})
	return l, nil
}
