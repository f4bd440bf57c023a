package image

import (
	"debug/elf"
	"fmt"
)

// checkAgent makes sure that path can be /init: an executable for arch that
// needs no dynamic loader, since the guest has none.
func checkAgent(path, arch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAgent, err)
	}
	defer f.Close()
	if want := arches[arch].machine; f.Machine != want {
		return fmt.Errorf("%w: the agent is for %s, the image for %s", ErrArch, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%w: it is dynamically linked", ErrAgent)
		}
	}
	return nil
}
