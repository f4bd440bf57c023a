package qemu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// signalServer is the host's half of the leak "signal-port": it signals the
// process that the guest names.
type signalServer struct {
	conn io.ReadCloser
	done chan struct{}
}

func serveSignals(ctx context.Context, path string) (*signalServer, error) {
	conn, err := dialUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	return startSignals(conn), nil
}

func startSignals(conn net.Conn) *signalServer {
	s := &signalServer{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		sc := bufio.NewScanner(conn)
		sc.Buffer(nil, 256)
		for sc.Scan() {
			var pid int
			if _, err := fmt.Sscanf(strings.TrimSpace(sc.Text()), "signal %d", &pid); err == nil && childOf(pid, os.Getpid()) {
				_ = syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}()
	return s
}

func (s *signalServer) Close() error {
	err := s.conn.Close()
	<-s.done
	return err
}

// childOf keeps a leak that was built to be attacked away from everything but
// the harness's own canaries.
func childOf(pid, parent int) bool {
	if pid <= 1 {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return len(f) > 1 && f[1] == fmt.Sprint(parent)
}
