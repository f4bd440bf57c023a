package vm

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The machine's deliberate weaknesses, each asked for on the kernel command
// line by a backend that was told to leak. Without its key nothing of it, not
// even its kernel modules, is loaded.
const (
	// NetKey is ADDRESS/BITS for the first network interface. There is no
	// route beyond that prefix, so that the leak reaches the VMM's gateway and
	// nothing else.
	NetKey = "bsm.net"
	// ShareKey is TAG,DIRECTORY of a 9p share of the host, see Share.
	ShareKey = "bsm.share"
	// KeepTreeKey has a deadline answer without killing anything.
	KeepTreeKey = "bsm.keep-tree"
)

// linkWait bounds the wait for a network interface after its driver is loaded.
const linkWait = 10 * time.Second

func applyLeaks(p map[string]string) (errs []error) {
	if v, ok := p[NetKey]; ok {
		errs = append(errs, loadModules(ModuleDir, "order.net")...)
		if err := configureNet(v); err != nil {
			errs = append(errs, fmt.Errorf("%s=%.64q: %w", NetKey, v, err))
		}
	}
	if _, ok := p[ShareKey]; ok {
		errs = append(errs, loadModules(ModuleDir, "order.share")...)
	}
	return errs
}

// A Share is a directory of the host that is mounted before the first tool
// runs and no earlier: QEMU refuses to take a snapshot of a machine that has
// such a share mounted.
type Share struct {
	tag, dir string
	mu       sync.Mutex
	mounted  bool
}

// NewShare returns the share that the parameters ask for, nil if none.
func NewShare(p map[string]string) *Share {
	tag, dir, ok := strings.Cut(p[ShareKey], ",")
	if !ok {
		return nil
	}
	return &Share{tag: tag, dir: dir}
}

// Mount mounts s unless it is mounted. A nil Share is no share.
func (s *Share) Mount() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mounted {
		return nil
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("mount share: %w", err)
	}
	if err := unix.Mount(s.tag, s.dir, "9p", unix.MS_NOSUID|unix.MS_NODEV, "trans=virtio,version=9p2000.L,cache=none"); err != nil {
		return fmt.Errorf("mount share %.32q: %w; fix: boot the distribution's general kernel, its cloud kernel has no 9p", s.tag, err)
	}
	s.mounted = true
	return nil
}

func configureNet(v string) error {
	prefix, err := netip.ParsePrefix(v)
	if err != nil {
		return err
	}
	if !prefix.Addr().Is4() {
		return errors.New("want an IPv4 address")
	}
	dev, err := firstLink("/sys/class/net")
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	mask := ^uint32(0) << (32 - prefix.Bits())
	for _, set := range []struct {
		req  uint
		addr []byte
	}{
		{unix.SIOCSIFADDR, prefix.Addr().AsSlice()},
		{unix.SIOCSIFNETMASK, []byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}},
	} {
		ifr, err := unix.NewIfreq(dev)
		if err != nil {
			return err
		}
		if err := ifr.SetInet4Addr(set.addr); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(fd, set.req, ifr); err != nil {
			return fmt.Errorf("address of %s: %w", dev, err)
		}
	}
	if err := linkUp(fd, dev); err != nil {
		return fmt.Errorf("bring %s up: %w", dev, err)
	}
	return nil
}

// firstLink returns the first interface besides lo.
func firstLink(class string) (string, error) {
	for end := time.Now().Add(linkWait); ; {
		links, err := filepath.Glob(filepath.Join(class, "*"))
		if err != nil {
			return "", err
		}
		for _, l := range links {
			if name := filepath.Base(l); name != "lo" {
				return name, nil
			}
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("no network interface after %s", linkWait)
		}
		time.Sleep(time.Millisecond) // the driver announces it nowhere but there
	}
}
