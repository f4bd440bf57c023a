package canary

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
)

// Port is a host service as careless as the leak that it stands for: it signals
// on request. It obeys for one canary process only.
type Port struct {
	Path string

	f    *os.File
	done sync.WaitGroup
}

// ServePort serves a named pipe in dir that owner may write to.
func ServePort(dir string, owner backends.Credential, p *Process) (*Port, error) {
	port := &Port{Path: filepath.Join(dir, "bsm-port-"+NewToken())}
	if err := unix.Mkfifo(port.Path, 0o600); err != nil {
		return nil, fmt.Errorf("make a port: %w", err)
	}
	if err := Own(port.Path, owner); err != nil {
		return nil, err
	}
	var err error
	// Open for both, so that it neither waits for a writer nor ends with one.
	if port.f, err = os.OpenFile(port.Path, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
		return nil, fmt.Errorf("make a port: %w", err)
	}
	want := fmt.Sprintf(attack.SignalLine, p.PID)
	port.done.Go(func() {
		r := bufio.NewReaderSize(port.f, 256)
		for {
			line, err := r.ReadSlice('\n')
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
			if string(line) == want {
				p.terminate()
			}
		}
	})
	return port, nil
}

// Stop ends the service and waits for it.
func (p *Port) Stop() {
	_ = p.f.Close()
	p.done.Wait()
	_ = os.Remove(p.Path)
}
