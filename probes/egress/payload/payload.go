//go:build linux

// Package payload is the guest half of P-A1: it sends a token to each canary
// that the host named and to nothing else, after it sent one in the same way to
// a listener of its own inside the sandbox.
package payload

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const defaultTimeout = 500 * time.Millisecond

// proofToken is sent to the listeners inside; it identifies nothing.
const proofToken = "00000000000000000000000000000000"

// Run is the tool net.egress. The exit code is always 0 when the parameters
// could be read: what was reached is for the host's canaries to say.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.EgressParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		fmt.Fprintln(in.Stderr, "net.egress: bad parameters:", err)
		return 2
	}
	timeout := defaultTimeout
	if p.TimeoutMS > 0 {
		timeout = time.Duration(p.TimeoutMS) * time.Millisecond
	}
	r := wire.NewRecorder(attack.NetEgress, p.Nonce)
	proved := map[string]bool{}
	for _, t := range p.Targets {
		if proved[t.Case] {
			continue
		}
		proved[t.Case] = true
		c, cancel := context.WithTimeout(ctx, timeout)
		err := prove(c, t)
		cancel()
		r.Prove(wire.Outcome(t.Case, t.Via, "inside", err))
	}
	for _, t := range p.Targets {
		c, cancel := context.WithTimeout(ctx, timeout)
		for _, at := range expand(t) {
			r.Try(wire.Outcome(t.Case, at.Via, label(at), send(c, at)))
		}
		cancel()
	}
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		if os.Getenv(name) != "" || os.Getenv(strings.ToUpper(name)) != "" {
			r.Fact(name, "set, not used")
		}
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

func label(t attack.EgressTarget) string {
	if t.Port == 0 {
		return t.Address
	}
	return fmt.Sprintf("%s port %d", t.Address, t.Port)
}

// expand turns a by-name target into one TCP target if /etc/hosts maps one of
// its names to its address. Nothing else is dialled: a name that leads
// elsewhere is not ours to visit.
func expand(t attack.EgressTarget) []attack.EgressTarget {
	if t.Via != attack.ViaName {
		return []attack.EgressTarget{t}
	}
	t.Via = attack.ViaTCP
	if !hostsMap("/etc/hosts", t.Names, t.Address) {
		t.Via = "no-name"
	}
	return []attack.EgressTarget{t}
}

func hostsMap(file string, names []string, address string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != address {
			continue
		}
		for _, have := range fields[1:] {
			for _, want := range names {
				if have == want {
					return true
				}
			}
		}
	}
	return false
}
