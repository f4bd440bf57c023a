//go:build linux

// Package payload is the guest half of P-A6: it leaves a marker where it can
// write, and looks whether the marker is still there.
package payload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Run is the tool substrate.anchor.
func Run(_ context.Context, in wire.ToolInput) int {
	return run(in, attack.AnchorDirs())
}

func run(in wire.ToolInput, dirs []string) int {
	var p attack.SubstrateAnchorParams
	err := json.Unmarshal(in.Params, &p)
	if err == nil && (len(p.Marker) != 2*wire.NonceSize || strings.Trim(p.Marker, "0123456789abcdef") != "") {
		err = errors.New("the marker is not 32 hex digits")
	}
	if err != nil {
		fmt.Fprintln(in.Stderr, "substrate.anchor: bad parameters:", err)
		return 2
	}
	r := wire.NewRecorder(attack.SubstrateAnchor, p.Nonce)
	// The proof goes the way of the attempts, with a marker of its own.
	r.Prove(wire.Outcome(attack.AnchorCase, "write and read", "a marker inside", prove(dirs)))
	op := "read"
	if p.Drop {
		op = "write"
	}
	for _, dir := range dirs {
		if p.Drop {
			err = drop(dir, p.Marker)
		} else {
			err = look(dir, p.Marker)
		}
		r.Try(wire.Outcome(attack.AnchorCase, op, dir, err))
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

func file(dir, marker string) string { return filepath.Join(dir, "bsm-anchor-"+marker) }

// prove succeeds where a marker can be left anywhere and found again.
func prove(dirs []string) error {
	marker := wire.NewNonceString()
	var errs []error
	for _, dir := range dirs {
		err := drop(dir, marker)
		if err == nil {
			err = errors.Join(look(dir, marker), os.Remove(file(dir, marker)))
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func drop(dir, marker string) error {
	f, err := os.OpenFile(file(dir, marker), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(marker)
	return errors.Join(err, f.Close())
}

// look returns nil where the marker is.
func look(dir, marker string) error {
	b, err := os.ReadFile(file(dir, marker))
	if err != nil {
		return err
	}
	if string(b) != marker {
		return errors.New("a file of that name holds something else")
	}
	return nil
}
