package canary

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// ListenICMP starts a witness of ICMP echo requests to addr (IPv4). The kernel
// answers them; the witness reads along. It needs CAP_NET_RAW.
func ListenICMP(addr netip.Addr) (*Listener, error) {
	if err := bindable(addr); err != nil {
		return nil, err
	}
	if !addr.Is4() {
		return nil, errors.New("the ICMP witness is IPv4 only")
	}
	pc, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: addr.AsSlice()})
	if err != nil {
		return nil, err
	}
	l := &Listener{Via: attack.ViaICMP, Addr: addr, visits: newVisits(), close: pc.Close}
	l.shared()
	l.self = func(ctx context.Context, token string) error {
		c, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: addr.AsSlice()})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WriteToIP(attack.EchoRequest(1, token), &net.IPAddr{IP: addr.AsSlice()})
		return err
	}
	l.done.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := pc.ReadFromIP(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil || n < 8 || buf[0] != 8 {
				continue
			}
			if body, ok := strings.CutPrefix(string(buf[8:n]), attack.EchoMark); ok && l.ours(body) {
				l.visits.record(body)
			}
		}
	})
	return l, nil
}
