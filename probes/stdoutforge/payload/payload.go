// Package payload is the guest half of P-A7: it prints hostile bytes.
package payload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// Run prints the content on stdout and its report on stderr. Before that it
// sends the content through a pipe of its own with the same function and
// compares what arrives, which proves that the bytes can be produced here.
func Run(_ context.Context, in wire.ToolInput) int {
	var p attack.StdoutForgeParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		_, _ = fmt.Fprintln(in.Stderr, "stdout.forge: bad params")
		return 2
	}
	rec := wire.NewRecorder(attack.StdoutForge, p.Nonce)
	rec.Prove(wire.Outcome(p.Case, "write", "own pipe", throughPipe(p.Content)))

	a := wire.Outcome(p.Case, "write", "stdout", emit(in.Stdout, p.Content))
	sum := sha256.Sum256(p.Content)
	a.Detail = fmt.Sprintf("%d bytes sha256 %s", len(p.Content), hex.EncodeToString(sum[:]))
	rec.Try(a)
	if err := rec.Write(in.Stderr); err != nil {
		return 1
	}
	return 0
}

func emit(w io.Writer, content []byte) error {
	n, err := w.Write(content)
	if err == nil && n != len(content) {
		err = io.ErrShortWrite
	}
	return err
}

func throughPipe(content []byte) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	wrote := make(chan error, 1)
	go func() {
		err := emit(w, content)
		_ = w.Close()
		wrote <- err
	}()
	got, err := io.ReadAll(r)
	if werr := <-wrote; werr != nil {
		return werr
	}
	if err != nil {
		return err
	}
	if !bytes.Equal(got, content) {
		return fmt.Errorf("the pipe delivered %d other bytes", len(got))
	}
	return nil
}
