package image

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

// The reasons for which an image cannot be built or trusted. Each is wrapped
// in a *backends.Error that says what it happened to and what helps.
var (
	ErrKernelMissing   = errors.New("no such kernel")
	ErrKernelTruncated = errors.New("kernel is truncated")
	ErrKernelFormat    = errors.New("not a bootable Linux kernel")
	ErrArch            = errors.New("wrong architecture")
	ErrModuleMissing   = errors.New("kernel module missing")
	ErrModuleFormat    = errors.New("not a usable kernel module")
	ErrAgent           = errors.New("agent unusable")
	ErrPackage         = errors.New("kernel package unusable")
	ErrApt             = errors.New("apt cannot provide the kernel package")
	ErrNoSpace         = errors.New("disk is full")
	ErrStale           = errors.New("image does not match its manifest")
)

// fail wraps cause, which must wrap one of the errors above.
func fail(doing, fix string, cause error) error {
	return &backends.Error{Code: backends.ErrNotAvailable, Doing: doing, Err: cause, Fix: fix}
}

// ioError gives a failed write its cause and its remedy.
func ioError(doing string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fail(doing, "free about 300 MiB there, or point --cache-dir at another file system", fmt.Errorf("%w: %w", ErrNoSpace, err))
	}
	return fail(doing, "", err)
}
