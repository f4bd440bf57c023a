package vm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// portWait bounds the wait for the virtio port after its driver is loaded.
const portWait = 30 * time.Second

// A Port is the agent's end of the virtio-serial port.
type Port struct{ f *os.File }

// OpenPort waits for the port to appear and opens it.
func OpenPort() (*Port, error) {
	for end := time.Now().Add(portWait); ; {
		if dev, ok := findPort("/sys/class/virtio-ports"); ok {
			fd, err := unix.Open(filepath.Join("/dev", dev), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err == nil {
				return &Port{os.NewFile(uintptr(fd), dev)}, nil
			}
			if !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("open virtio port: %w", err)
			}
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("no virtio port named %s after %s", PortName, portWait)
		}
		// The name arrives after the driver: the device announces its ports
		// by messages. There is nothing to wait on but the file.
		time.Sleep(time.Millisecond)
	}
}

func findPort(class string) (string, bool) {
	names, _ := filepath.Glob(filepath.Join(class, "*", "name"))
	for _, n := range names {
		if b, err := os.ReadFile(n); err == nil && string(bytes.TrimSpace(b)) == PortName {
			return filepath.Base(filepath.Dir(n)), true
		}
	}
	return "", false
}

// noHost is the pause while no host is connected: the port then reads as empty
// at once, for as long as it lasts.
const noHost = 2 * time.Millisecond

// Read blocks until the host sends something. The port never ends: an end of
// file says that no host is connected, and an error may come with a restore.
func (p *Port) Read(b []byte) (int, error) {
	for {
		n, err := p.f.Read(b)
		if n > 0 {
			return n, nil
		}
		if errors.Is(err, os.ErrClosed) {
			return 0, io.EOF
		}
		time.Sleep(noHost)
	}
}

func (p *Port) Write(b []byte) (int, error) { return p.f.Write(b) }

// Close closes the port.
func (p *Port) Close() error { return p.f.Close() }
