package canary

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

const (
	// visitTimeout bounds one stream visit; a silent one becomes anonymous.
	visitTimeout = time.Second
	// maxVisitors bounds concurrent stream visits. Further ones are counted
	// as anonymous and closed at once.
	maxVisitors = 64
	// maxVisit bounds what is read from one visitor.
	maxVisit = 512
	// checkTimeout bounds a self-check.
	checkTimeout = 3 * time.Second
)

// Listener is a canary that waits for visits on one address.
type Listener struct {
	// Via is how it is reached: one of the constants of package attack.
	Via string
	// Addr and Port are set for IP transports.
	Addr netip.Addr
	Port int
	// Path is the abstract name (without its NUL) or the socket's path.
	Path string

	// prefix begins every token on a medium that the rest of the machine uses
	// too: what does not begin with it is none of ours.
	prefix string
	visits *visits
	self   func(ctx context.Context, token string) error
	close  func() error
	once   sync.Once
	done   sync.WaitGroup
}

// Kind names the canary for reports and fault injection, such as "tcp4 canary".
func (l *Listener) Kind() string { return l.Via + l.Family() + " canary" }

// Family is "4", "6" or empty.
func (l *Listener) Family() string {
	switch {
	case l.Addr.Is4():
		return "4"
	case l.Addr.Is6():
		return "6"
	}
	return ""
}

// Token draws a fresh token for this canary.
func (l *Listener) Token() string { return l.prefix + NewToken()[len(l.prefix):] }

// shared makes the canary one of a medium that others use too.
func (l *Listener) shared() { l.prefix = NewToken()[:8] }

// ours reports whether a visit on a shared medium is meant for this canary.
func (l *Listener) ours(token string) bool { return strings.HasPrefix(token, l.prefix) }

// Expect announces a token: a visit with it is recorded under its name.
func (l *Listener) Expect(token string) { l.visits.expect(token) }

// Seen says how often token came.
func (l *Listener) Seen(token string) int { return l.visits.count(token) }

// Anonymous counts visits without an expected token.
func (l *Listener) Anonymous() int { return l.visits.strangers() }

// SelfCheck visits the canary from the host with a token of its own. nil means
// that it was seen, and that every visit begun before it has been recorded.
func (l *Listener) SelfCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	token := l.Token()
	l.Expect(token)
	if err := l.self(ctx, token); err != nil {
		return fmt.Errorf("%s does not answer the host: %w", l.Kind(), err)
	}
	if !l.visits.await(ctx, token) {
		return fmt.Errorf("%s did not see the host's own visit", l.Kind())
	}
	return nil
}

// Stop ends the canary and waits for its goroutines.
func (l *Listener) Stop() {
	l.once.Do(func() { _ = l.close() })
	l.done.Wait()
}

// ListenTCP starts a canary on a free TCP port of addr.
func ListenTCP(addr netip.Addr) (*Listener, error) {
	if err := bindable(addr); err != nil {
		return nil, err
	}
	nl, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return nil, err
	}
	l := &Listener{Via: attack.ViaTCP, Addr: addr, Port: nl.Addr().(*net.TCPAddr).Port}
	l.serveStream(nl)
	return l, nil
}

// ListenAbstract starts a canary on an abstract unix socket of this network
// namespace.
func ListenAbstract() (*Listener, error) {
	name := "bsm-canary-" + NewToken()
	nl, err := net.Listen("unix", "@"+name)
	if err != nil {
		return nil, err
	}
	l := &Listener{Via: attack.ViaAbstract, Path: name}
	l.serveStream(nl)
	return l, nil
}

// maxSocketPath is what fits into a socket address on every system.
const maxSocketPath = 103

// ListenUnix starts a canary on a unix socket in dir, which anybody who sees it
// may connect to. Where that path is too long for a socket it makes a directory
// for temporary files.
func ListenUnix(dir string) (*Listener, error) {
	name := "c-" + NewToken()[:12]
	remove := func() error { return nil }
	if len(filepath.Join(dir, name)) > maxSocketPath {
		short, err := os.MkdirTemp("", "bsm-")
		if err != nil {
			return nil, err
		}
		dir, remove = short, func() error { return os.RemoveAll(short) }
		if err := os.Chmod(short, 0o711); err != nil {
			return nil, errors.Join(err, remove())
		}
	}
	path := filepath.Join(dir, name)
	nl, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, remove())
	}
	// Every identity may connect: the boundary is under test, not a file mode.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, nl.Close(), remove())
	}
	l := &Listener{Via: attack.ViaUnix, Path: path}
	l.serveStream(nl)
	l.close = func() error { return errors.Join(nl.Close(), remove()) }
	return l, nil
}

func (l *Listener) serveStream(nl net.Listener) {
	l.visits, l.close = newVisits(), nl.Close
	network, address := nl.Addr().Network(), nl.Addr().String()
	l.self = func(ctx context.Context, token string) error { return visitStream(ctx, network, address, token) }
	slots := make(chan struct{}, maxVisitors)
	l.done.Go(func() {
		for {
			c, err := nl.Accept()
			if err != nil {
				return
			}
			select {
			case slots <- struct{}{}:
			default:
				l.visits.record("")
				_ = c.Close()
				continue
			}
			l.visits.begin()
			l.done.Go(func() {
				defer func() { <-slots; l.visits.end() }()
				l.receive(c)
			})
		}
	})
}

func (l *Listener) receive(c net.Conn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(visitTimeout))
	line, err := bufio.NewReader(io.LimitReader(c, maxVisit)).ReadString('\n')
	if err != nil && line == "" {
		l.visits.record("")
		return
	}
	token := strings.TrimSpace(line)
	if l.visits.record(token) {
		_, _ = io.WriteString(c, attack.EgressAnswer(token)+"\n")
	}
}

func visitStream(ctx context.Context, network, address, token string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer c.Close()
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d)
	}
	if _, err := io.WriteString(c, token+"\n"); err != nil {
		return err
	}
	return expectAnswer(c, token)
}

func expectAnswer(r io.Reader, token string) error {
	buf := make([]byte, maxVisit)
	n, err := r.Read(buf)
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(buf[:n])); got != attack.EgressAnswer(token) {
		return errors.New("something else answered: " + strconv.Quote(got))
	}
	return nil
}

// bindable refuses addresses on which a canary would be reachable from
// elsewhere than the sandbox.
func bindable(a netip.Addr) error {
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("a canary is not bound to %s: only loopback and the sandbox's own gateway addresses are", a)
	}
	return nil
}
