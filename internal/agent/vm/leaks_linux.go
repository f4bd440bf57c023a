package vm

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The machine's deliberate weaknesses, each asked for on the kernel command
// line by a backend that was told to leak. Without its key nothing of it, not
// even its kernel modules, is loaded.
const (
	// NetKey is ADDRESS/BITS,GATEWAY for the first network interface.
	NetKey = "bsm.net"
	// ShareKey is TAG,DIRECTORY of a 9p share of the host.
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
	if v, ok := p[ShareKey]; ok {
		errs = append(errs, loadModules(ModuleDir, "order.share")...)
		if err := mountShare(v); err != nil {
			errs = append(errs, fmt.Errorf("%s=%.64q: %w", ShareKey, v, err))
		}
	}
	return errs
}

func mountShare(v string) error {
	tag, dir, ok := strings.Cut(v, ",")
	if !ok {
		return errors.New("want TAG,DIRECTORY")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return unix.Mount(tag, dir, "9p", unix.MS_NOSUID|unix.MS_NODEV, "trans=virtio,version=9p2000.L,cache=none")
}

func configureNet(v string) error {
	cidr, via, _ := strings.Cut(v, ",")
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return err
	}
	gateway, err := netip.ParseAddr(via)
	if err != nil {
		return err
	}
	if !prefix.Addr().Is4() || !gateway.Is4() {
		return errors.New("want IPv4 addresses")
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
	return defaultRoute(fd, gateway.As4())
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

// rtEntry is the kernel's struct rtentry on 64-bit machines, as far as used.
type rtEntry struct {
	_                  uint64
	dst, gateway, mask unix.RawSockaddrInet4
	flags              uint16
	_                  [62]byte
}

func defaultRoute(fd int, gateway [4]byte) error {
	const up, viaGateway = 1, 2 // RTF_UP, RTF_GATEWAY
	r := rtEntry{flags: up | viaGateway}
	r.dst.Family, r.mask.Family, r.gateway.Family = unix.AF_INET, unix.AF_INET, unix.AF_INET
	r.gateway.Addr = gateway
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&r))); errno != 0 {
		return fmt.Errorf("default route: %w", errno)
	}
	return nil
}
