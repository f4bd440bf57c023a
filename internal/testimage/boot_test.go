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
	testreq.Need(t, emulators[runtime.GOARCH].binary)
	m := Manifest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	console := boot(ctx, t, m)

	c, err := guest.Connect(ctx, guest.Options{Dial: console.dial, AgentSHA256: m.AgentSHA256})
	require.NoError(t, err, "the console says:\n%s", console)
	defer c.Close()
	require.True(t, c.Hello().VM, "the agent is not in VM mode")

	read := func(path string) string {
		ex, err := c.Execute(ctx, backends.Invocation{Tool: "cat-file", Params: map[string]string{"path": path}, Deadline: 20 * time.Second})
		require.NoError(t, err)
		require.Zero(t, ex.ExitCode, "%s: %s", path, ex.Stderr)
		return string(ex.Stdout.Bytes())
	}
	require.Contains(t, read("/etc/shadow"), image.Marker)
	require.Equal(t, image.Marker+"\n", read(vm.RootDir+"/usr/share/bsm/marker"), "the root disk is not mounted")
	loaded := read("/proc/modules")
	for _, file := range m.BootModules {
		require.Contains(t, loaded, strings.TrimSuffix(file, ".ko")+" ")
	}
	require.Contains(t, read("/proc/version"), m.KernelRelease)
	require.Contains(t, read("/proc/mounts"), vm.RootDisk+" "+vm.RootDir+" ext4 ro,")
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

func boot(ctx context.Context, t *testing.T, img image.Manifest) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{socket: filepath.Join(dir, "agent.sock"), log: filepath.Join(dir, "console")}
	log, err := os.Create(m.log)
	require.NoError(t, err)
	defer log.Close()
	emulator := emulators[img.Arch]
	cmd := exec.CommandContext(ctx, emulator.binary, "-M", emulator.machine, "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
		"-kernel", img.Kernel(), "-initrd", img.Initramfs(), "-append", img.Cmdline,
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+img.Rootfs(), "-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path="+m.socket,
		"-device", "virtserialport,chardev=agent,name="+vm.PortName)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed on purpose
	})
	return m
}
