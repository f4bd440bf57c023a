package payload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	defaultScan = 32 << 20
	scanChunk   = 256 << 10
	dialTimeout = 300 * time.Millisecond
)

var (
	memoryDevices = []string{"/dev/mem", "/dev/kmem", "/dev/port", "/proc/kcore"}

	// runtimeSockets lead to a daemon that can start containers, and so to the
	// host, if they are the host's.
	runtimeSockets = []string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
		"/run/podman/podman.sock", "/run/k3s/containerd/containerd.sock", "/run/buildkit/buildkitd.sock", "/run/dbus/system_bus_socket",
		"/run/systemd/private", "/var/lib/lxd/unix.socket", "/run/libvirt/libvirt-sock"}
)

// environ looks for one variable in every readable environment, and brings no
// other back.
func (j job) environ(proc string) {
	name := []byte(j.p.EnvName + "=")
	files, _ := filepath.Glob(proc + "/[0-9]*/environ")
	if len(files) > maxPIDs {
		files = files[:maxPIDs]
	}
	found, denied := false, 0
	for _, file := range append(files, proc+"/self/environ") {
		b, err := os.ReadFile(file)
		if err != nil {
			denied++
			continue
		}
		for _, v := range bytes.Split(b, []byte{0}) {
			if bytes.HasPrefix(v, name) {
				found = true
				j.record(wire.Attempt{Case: attack.FSEnviron, Op: "read", Target: file, Result: wire.ResultOK, Data: v})
			}
		}
	}
	if v, ok := os.LookupEnv(j.p.EnvName); ok {
		found = true
		j.record(wire.Attempt{Case: attack.FSEnviron, Op: "getenv", Result: wire.ResultOK, Data: []byte(v)})
	}
	if !found {
		j.record(wire.Attempt{Case: attack.FSEnviron, Op: "read", Result: wire.ResultAbsent,
			Detail: strconv.Itoa(len(files)) + " processes, " + strconv.Itoa(denied) + " closed"})
	}
}

// disks scans block devices for the marker, then writes the last sector of
// those that are our own to write.
func (j job) disks(fact func(name, value string)) {
	var found []string
	if !j.p.CanaryOnly {
		found = blockDevices(j.dir)
	}
	for _, dev := range slices.Concat(j.p.Devices, found) {
		data, n, err := scan(j.ctx, dev, []byte(j.p.Marker), j.p.ScanBytes)
		a := wire.Outcome(attack.FSBlockScan, "scan", dev, err)
		a.Data, a.Detail = data, strconv.FormatInt(n, 10)+" bytes"
		j.record(a)
		if n > 0 {
			fact(attack.FactReadable+dev, a.Detail)
		}
	}
	if len(j.p.Devices)+len(found) == 0 {
		j.record(wire.Attempt{Case: attack.FSBlockScan, Op: "scan", Result: wire.ResultAbsent, Detail: "no block device"})
	}
	if j.p.DiskToken == "" {
		return
	}
	targets := j.p.Devices
	if j.p.VM {
		targets = slices.Concat(targets, found)
	}
	for _, dev := range targets {
		old, at, err := markSector(dev, j.p.DiskToken)
		a := wire.Outcome(attack.FSDiskWrite, "write", dev, err)
		if err == nil {
			a.Data, a.Detail = old, strconv.FormatInt(at, 10)
		}
		j.record(a)
	}
}

// blockDevices lists what /proc/partitions names. Where a device has no node, it
// makes one of its own.
func blockDevices(dir string) []string {
	b, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 4 || strings.HasPrefix(f[3], "loop") || strings.HasPrefix(f[3], "ram") || len(out) >= 16 {
			continue
		}
		major, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			continue
		}
		minor, err := strconv.ParseUint(f[1], 10, 32)
		if err != nil {
			continue
		}
		node := "/dev/" + f[3]
		if _, err := os.Stat(node); err != nil && dir != "" {
			made := filepath.Join(dir, "block-"+f[3])
			if unix.Mknod(made, unix.S_IFBLK|0o600, int(unix.Mkdev(uint32(major), uint32(minor)))) == nil {
				node = made
			}
		}
		out = append(out, node)
	}
	return out
}

var errNoMarker = errors.New("the marker is not there")

// scan reads at most limit bytes of a device and returns what stands at the
// marker.
func scan(ctx context.Context, dev string, marker []byte, limit int64) ([]byte, int64, error) {
	if limit <= 0 {
		limit = defaultScan
	}
	f, err := os.Open(dev)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	buf, kept, total := make([]byte, scanChunk), 0, int64(0)
	for total < limit && ctx.Err() == nil {
		n, err := f.Read(buf[kept:])
		total += int64(n)
		have := buf[:kept+n]
		if i := bytes.Index(have, marker); i >= 0 {
			return bytes.Clone(have[i:min(len(have), i+wire.MaxAttemptData)]), total, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, total, err
		}
		if n == 0 {
			break
		}
		kept = copy(buf, have[max(0, len(have)-len(marker)-128):])
	}
	return nil, total, errNoMarker
}

// markSector writes token over the last sector and returns what was there.
func markSector(dev, token string) (old []byte, at int64, err error) {
	f, err := os.OpenFile(dev, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, 0, err
	}
	if end < attack.SectorSize {
		return nil, 0, unix.ENOSPC
	}
	at = end/attack.SectorSize*attack.SectorSize - attack.SectorSize
	old = make([]byte, attack.SectorSize)
	if _, err := f.ReadAt(old, at); err != nil {
		return nil, 0, err
	}
	sector := make([]byte, attack.SectorSize)
	copy(sector, token)
	if _, err := f.WriteAt(sector, at); err != nil {
		return nil, 0, err
	}
	return old, at, f.Sync()
}

func writeAt(dev string, at int64, b []byte) error {
	f, err := os.OpenFile(dev, os.O_RDWR|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, at)
	return errors.Join(err, f.Sync(), f.Close())
}

// sockets visits the canary socket, then knocks at those of runtimes.
func (j job) sockets() {
	j.socket(attack.FSSocket, j.p.Socket, j.p.SocketToken)
	if j.p.CanaryOnly {
		return
	}
	for _, path := range runtimeSockets {
		j.socket(attack.FSKnownSock, path, "")
	}
}

// socket connects; it sends a token, if there is one, and waits for its answer.
// A runtime's socket is only connected to and closed.
func (j job) socket(cas, path, token string) {
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil && token != "" {
		_ = c.SetDeadline(time.Now().Add(dialTimeout))
		_, err = io.WriteString(c, token+"\n")
		if err == nil {
			buf := make([]byte, 256)
			var n int
			n, err = c.Read(buf)
			if err == nil && strings.TrimSpace(string(buf[:n])) != attack.EgressAnswer(token) {
				err = errOtherFile
			}
		}
	}
	if c != nil {
		_ = c.Close()
	}
	j.record(wire.Outcome(cas, "connect", path, err))
}

// listen answers one visitor at path.
func listen(path string) (stop func(), err error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 64)
		if n, err := c.Read(buf); err == nil {
			_, _ = io.WriteString(c, attack.EgressAnswer(strings.TrimSpace(string(buf[:n])))+"\n")
		}
	})
	return func() { _ = l.Close(); wg.Wait() }, nil
}

// devMem opens the machine's memory for reading and reads nothing.
func (j job) devMem(devices []string) {
	for _, dev := range devices {
		f, err := os.Open(dev)
		if err == nil {
			_ = f.Close()
		}
		j.record(wire.Outcome(attack.FSDevMem, "open", dev, err))
	}
}
