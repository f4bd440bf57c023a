package mock

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// egress reports a world without a route. With the leak it really visits the
// canaries that it was given, on this host's loopback and nowhere else.
func (w *world) egress(ctx context.Context, in wire.ToolInput) int {
	var p attack.EgressParams
	if !params(in, &p) {
		return exitUsage
	}
	timeout := time.Duration(p.TimeoutMS) * time.Millisecond
	if timeout <= 0 {
		timeout = 500 * time.Millisecond
	}
	rec := wire.NewRecorder(attack.NetEgress, p.Nonce)
	for _, t := range p.Targets {
		if !simulated(t.Via) {
			rec.Prove(wire.Outcome(t.Case, t.Via, "inside", syscall.ENOSYS))
			rec.Try(wire.Outcome(t.Case, t.Via, t.Address, syscall.ENOSYS))
			continue
		}
		rec.Prove(wire.Outcome(t.Case, t.Via, "simulated listener inside", nil))
		err := error(syscall.ENETUNREACH)
		if w.leaks.crosses(leakEgress) {
			err = visit(ctx, t, timeout)
		}
		rec.Try(wire.Outcome(t.Case, t.Via, t.Address, err))
	}
	return report(in, rec)
}

// simulated are the ways that need no privilege of the harness.
func simulated(via string) bool {
	switch via {
	case attack.ViaTCP, attack.ViaUDP, attack.ViaDNS, attack.ViaAbstract, attack.ViaUnix:
		return true
	}
	return false
}

// visit sends a target's token in its way and waits for the answer.
func visit(ctx context.Context, t attack.EgressTarget, timeout time.Duration) error {
	network, address, message := "tcp", net.JoinHostPort(t.Address, strconv.Itoa(t.Port)), []byte(t.Token+"\n")
	switch t.Via {
	case attack.ViaUDP:
		network = "udp"
	case attack.ViaDNS:
		network, message = "udp", attack.QueryDNS(7, t.Token)
	case attack.ViaAbstract:
		network, address = "unix", "@"+t.Address
	case attack.ViaUnix:
		network, address = "unix", t.Address
	}
	if network != "unix" {
		if a, err := netip.ParseAddr(t.Address); err != nil || !a.IsLoopback() {
			return syscall.EPERM // the mock's own rule: loopback only
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d)
	}
	if _, err := c.Write(message); err != nil {
		return err
	}
	buf := make([]byte, 512)
	n, err := c.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if t.Via != attack.ViaDNS && strings.TrimSpace(string(buf[:n])) != attack.EgressAnswer(t.Token) {
		return errors.New("something else than the canary answered")
	}
	return nil
}
