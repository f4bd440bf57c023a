//go:build !linux

package hostcheck

import (
	"errors"
	"runtime"
)

// KVM says why this process cannot use KVM.
func KVM() error { return errors.New("there is no KVM on " + runtime.GOOS) }
