package mock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// maxEnvironments bounds the search for the canary's variable.
const maxEnvironments = 4096

// escapeFiles reports a world in which the canary does not exist. With the leak
// it really reads and changes the canaries that it was given, and no other
// file.
func (w *world) escapeFiles(ctx context.Context, in wire.ToolInput) int {
	var p attack.FSEscapeParams
	if !params(in, &p) {
		return exitUsage
	}
	rec := wire.NewRecorder(attack.FSEscape, p.Nonce)
	for _, c := range []string{attack.FSAbsolute, attack.FSTraversal, attack.FSProcRoot, attack.FSInherited, attack.FSMounts,
		attack.FSWrite, attack.FSEnviron, attack.FSBlockScan, attack.FSSocket} {
		rec.Prove(wire.Outcome(c, "read", "simulated file inside", nil))
	}
	for _, c := range []string{attack.FSHandle, attack.FSDevMem, attack.FSKnownSock} {
		rec.Try(wire.Outcome(c, "open", "", syscall.ENOSYS))
	}
	if w.leaks.crosses(leakFiles) {
		crossFiles(ctx, p, rec.Try)
	} else {
		for _, c := range []string{attack.FSAbsolute, attack.FSTraversal, attack.FSProcRoot, attack.FSInherited, attack.FSMounts} {
			rec.Try(wire.Outcome(c, "read", p.Path, syscall.ENOENT))
		}
		rec.Try(wire.Outcome(attack.FSWrite, "append", p.Path, syscall.ENOENT))
		rec.Try(wire.Outcome(attack.FSEnviron, "read", "/proc/1/environ", syscall.EACCES))
		rec.Try(wire.Outcome(attack.FSBlockScan, "scan", "", syscall.ENOENT))
		rec.Try(wire.Outcome(attack.FSSocket, "connect", p.Socket, syscall.ENOENT))
	}
	return report(in, rec)
}

func crossFiles(ctx context.Context, p attack.FSEscapeParams, record func(wire.Attempt)) {
	for c, path := range map[string]string{attack.FSAbsolute: p.Path, attack.FSTraversal: "/../.." + p.Path,
		attack.FSProcRoot: "/proc/self/root" + p.Path, attack.FSInherited: p.Path, attack.FSMounts: p.Path} {
		b, err := readMarked(path, p.Marker, wire.MaxAttemptData)
		a := wire.Outcome(c, "read", path, err)
		a.Data = b
		record(a)
	}
	f, err := os.OpenFile(p.Path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = io.WriteString(f, p.Append)
		err = errors.Join(err, f.Close())
	}
	record(wire.Outcome(attack.FSWrite, "append", p.Path, err))
	found, err := environment(p.EnvName)
	a := wire.Outcome(attack.FSEnviron, "read", "/proc/*/environ", err)
	a.Data = found
	record(a)
	for _, dev := range p.Devices {
		b, err := readMarked(dev, p.Marker, 4<<20)
		a := wire.Outcome(attack.FSBlockScan, "scan", dev, err)
		a.Data = b
		record(a)
	}
	if p.Socket != "" {
		t := attack.EgressTarget{Via: attack.ViaUnix, Address: p.Socket, Token: p.SocketToken}
		record(wire.Outcome(attack.FSSocket, "connect", p.Socket, visit(ctx, t, time.Second)))
	}
}

// readMarked returns what stands at the marker in the first most bytes of a
// file. A file without it is not the canary, and none of it is returned.
func readMarked(path, marker string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const piece, shown = 64 << 10, 256
	r := bufio.NewReaderSize(io.LimitReader(f, most), piece)
	for {
		b, err := r.Peek(piece)
		if i := bytes.Index(b, []byte(marker)); i >= 0 && marker != "" && (err != nil || i+shown <= len(b)) {
			return bytes.Clone(b[i:min(len(b), i+shown)]), nil
		}
		if errors.Is(err, io.EOF) {
			return nil, errors.New("another file")
		}
		if err != nil {
			return nil, err
		}
		if _, err := r.Discard(piece - shown); err != nil { // what may be cut stays
			return nil, err
		}
	}
}

// environment returns the values of one variable in all readable environments,
// and nothing else of them.
func environment(name string) ([]byte, error) {
	if name == "" {
		return nil, syscall.EINVAL
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []byte
	for i, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil || i > maxEnvironments {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(b, []byte{0}) {
			if bytes.HasPrefix(v, []byte(name+"=")) {
				out = append(append(out, v...), '\n')
			}
		}
	}
	if out == nil {
		return nil, syscall.ENOENT
	}
	return out, nil
}
