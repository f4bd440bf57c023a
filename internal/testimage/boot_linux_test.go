package testimage

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/agent/vm"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
	"github.com/brainst0rm/sandbox-redteam/internal/testreq"
)

// TestImageBoots shows that kernel, module order, agent and root disk fit
// together, with QEMU alone and none of our backends.
func TestImageBoots(t *testing.T) {
	m := Manifest(t)
	read := boot(t, m, "")
	require.Contains(t, read("/etc/shadow"), image.Marker)
	require.Equal(t, image.Marker+"\n", read(vm.RootDir+"/usr/share/bsm/marker"), "the root disk is not mounted")
	loaded := read("/proc/modules")
	for _, file := range m.BootModules {
		require.Contains(t, loaded, strings.TrimSuffix(file, ".ko")+" ")
	}
	require.Contains(t, read("/proc/version"), m.KernelRelease)
	require.Contains(t, read("/proc/mounts"), vm.RootDisk+" "+vm.RootDir+" ext4 ro,")
}

// TestNetworkOnlyWhenAskedFor shows that the leak's modules and address come
// with its key and not without it.
func TestNetworkOnlyWhenAskedFor(t *testing.T) {
	device := []string{"-netdev", "user,id=net,restrict=on,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="}
	read := boot(t, Manifest(t), "", device...)
	require.NotContains(t, read("/proc/modules"), "virtio_net")
	require.NotContains(t, read("/proc/net/dev"), "eth0")

	read = boot(t, Manifest(t), " "+vm.NetKey+"=10.0.2.15/24", device...)
	require.Contains(t, read("/proc/net/fib_trie"), "10.0.2.15")
	require.NotRegexp(t, `(?m)^eth0\s+00000000\s`, read("/proc/net/route"), "a default route leads out of this machine")
}

// TestShareOfTheHost shows a file of the host inside, with the kernel that has
// 9p; the file is made after the boot, as a canary is.
func TestShareOfTheHost(t *testing.T) {
	dir := t.TempDir()
	img := General(t)
	require.Contains(t, img.Groups["share"], "9p.ko")
	read := boot(t, img, " "+vm.ShareKey+"=host,/mnt/share", "-fsdev", "local,id=share,security_model=none,path="+dir, "-device", "virtio-9p-pci,fsdev=share,mount_tag=host")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "canary"), []byte("of the host"), 0o600))
	require.Equal(t, "of the host", read("/mnt/share/canary"))
}

// emulators are QEMU's for the architectures that images are built for.
var emulators = map[string]struct{ binary, machine string }{
	"amd64": {"qemu-system-x86_64", "q35"}, "arm64": {"qemu-system-aarch64", "virt"},
}

// machine is a running QEMU.
type machine struct{ socket, log string }

func (m *machine) String() string {
	b, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (m *machine) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", m.socket)
		if err == nil || ctx.Err() != nil {
			return c, err
		}
		time.Sleep(5 * time.Millisecond) // QEMU makes the socket; nothing announces it
	}
}

// boot starts the image and returns a reader of the guest's files.
func boot(t *testing.T, img image.Manifest, cmdline string, extra ...string) func(path string) string {
	t.Helper()
	emulator := emulators[runtime.GOARCH]
	testreq.Need(t, "qemu")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	t.Cleanup(cancel)
	dir := t.TempDir()
	m := &machine{socket: filepath.Join(dir, "agent.sock"), log: filepath.Join(dir, "console")}
	log, err := os.Create(m.log)
	require.NoError(t, err)
	defer log.Close()
	cmd := exec.CommandContext(ctx, emulator.binary, append([]string{"-M", emulator.machine, "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", img.Kernel(), "-initrd", img.Initramfs(), "-append", img.Cmdline + cmdline,
		"-drive", "if=none,id=root,format=raw,readonly=on,file=" + img.Rootfs(), "-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path=" + m.socket,
		"-device", "virtserialport,chardev=agent,name=" + vm.PortName}, extra...)...)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed on purpose
	})
	c, err := guest.Connect(ctx, guest.Options{Dial: m.dial, AgentSHA256: img.AgentSHA256})
	require.NoError(t, err, "the console says:\n%s", m)
	t.Cleanup(func() { _ = c.Close() })
	require.True(t, c.Hello().VM, "the agent is not in VM mode")
	return func(path string) string {
		t.Helper()
		ex, err := c.Execute(ctx, backends.Invocation{Tool: "cat-file", Params: map[string]string{"path": path}, Deadline: 20 * time.Second})
		require.NoError(t, err)
		require.Zero(t, ex.ExitCode, "%s: %s", path, ex.Stderr)
		return string(ex.Stdout.Bytes())
	}
}
