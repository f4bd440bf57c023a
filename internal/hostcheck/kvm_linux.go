package hostcheck

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// The interface of KVM; see api.rst of Linux. Every other version is unknown to us.
const (
	kvmGetAPIVersion = 0xae00 // _IO(KVMIO, 0x00)
	kvmAPIVersion    = 12
)

// KVM says why this process cannot use KVM, nil if the device opens and speaks
// the only version of the interface that there is. A guest may still not run on
// it: only a boot shows that.
func KVM() error { return kvm("/dev/kvm", unix.IoctlRetInt) }

func kvm(device string, ioctl func(fd int, request uint) (int, error)) error {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only a handle
	for {
		version, err := ioctl(int(f.Fd()), kvmGetAPIVersion)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("%s opens, but it is no KVM: %w", device, err)
		case version != kvmAPIVersion:
			return fmt.Errorf("%s speaks version %d of KVM's interface, not %d", device, version, kvmAPIVersion)
		}
		return nil
	}
}
