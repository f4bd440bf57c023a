//go:build !linux

package canary

import (
	"errors"
	"net/netip"
)

// ListenPacket needs Linux.
func ListenPacket(netip.Addr) (*Listener, error) {
	return nil, errors.New("link-layer frames can be watched on Linux only")
}
