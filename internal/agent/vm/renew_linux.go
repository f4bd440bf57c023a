package vm

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// maxEntropy bounds the entropy that one signal credits, in bytes.
const maxEntropy = 512

// Renew sets the clock and credits entropy, as a reset signal says. A restored
// machine would otherwise live in the past and repeat its random numbers.
func Renew(s wire.ResetSignal) (applied []string, err error) {
	if s.UnixNano > 0 {
		ts := unix.NsecToTimespec(s.UnixNano)
		if e := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); e != nil {
			err = errors.Join(err, fmt.Errorf("set the clock to %s: %w", time.Unix(0, s.UnixNano).UTC().Format(time.RFC3339), e))
		} else {
			applied = append(applied, "clock")
		}
	}
	if len(s.Entropy) > 0 {
		if e := creditEntropy(s.Entropy); e != nil {
			err = errors.Join(err, fmt.Errorf("credit entropy: %w", e))
		} else {
			applied = append(applied, "entropy")
		}
	}
	return applied, err
}

// creditEntropy adds b to the kernel's pool and has the generators reseeded.
// Adding alone changes nothing until their next reseed, minutes later.
func creditEntropy(b []byte) error {
	if len(b) > maxEntropy {
		return fmt.Errorf("%d bytes are over the limit of %d", len(b), maxEntropy)
	}
	f, err := os.OpenFile("/dev/urandom", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// struct rand_pool_info: entropy in bits, size in bytes, data. It lies in
	// words for the alignment that the kernel reads it with.
	words := make([]uint32, 2+(len(b)+3)/4)
	words[0], words[1] = uint32(8*len(b)), uint32(len(b))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&words[2])), len(b)), b)
	if err := ioctl(f, unix.RNDADDENTROPY, unsafe.Pointer(&words[0])); err != nil {
		return err
	}
	return ioctl(f, unix.RNDRESEEDCRNG, nil)
}

func ioctl(f *os.File, req uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), req, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
