package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/agentbin"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/image"
)

// bootImage returns the image that our backend boots, made before any clock runs.
func bootImage(ctx context.Context, bin string) (image.Manifest, error) {
	agent, sum, err := agentbin.Find(ctx, filepath.Join(bin, agentbin.Name))
	if err != nil {
		return image.Manifest{}, err
	}
	cache, err := image.DefaultCacheDir()
	if err != nil {
		return image.Manifest{}, err
	}
	return image.Ensure(ctx, image.Options{CacheDir: cache, Arch: runtime.GOARCH, Kernel: image.Distro, Agent: agent, AgentSHA256: sum})
}

// plainBoot boots our image with the lab's command line, without our backend,
// and returns the time from the start of QEMU to the agent's hello.
func plainBoot(ctx context.Context, bin string) (time.Duration, error) {
	if runtime.GOARCH != "amd64" {
		return 0, fmt.Errorf("the lab measured amd64 only, this is %s", runtime.GOARCH)
	}
	img, err := bootImage(ctx, bin)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "bsm-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	socket := filepath.Join(dir, "agent.sock")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-M", "q35", "-accel", "tcg", "-cpu", "max", "-m", "256", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "null",
		"-kernel", img.Kernel(), "-initrd", img.Initramfs(), "-append", img.Cmdline,
		"-drive", "if=none,id=root,format=raw,readonly=on,file="+img.Rootfs(), "-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path="+socket,
		"-device", "virtserialport,chardev=agent,name=bsm.agent.0")
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed on purpose
	}()
	c, err := guest.Connect(ctx, guest.Options{AgentSHA256: img.AgentSHA256, Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		for {
			c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
			if err == nil || ctx.Err() != nil {
				return c, err
			}
			time.Sleep(time.Millisecond) // QEMU makes the socket; nothing announces it
		}
	}})
	if err != nil {
		return 0, fmt.Errorf("boot with plain qemu: %w", err)
	}
	took := time.Since(start)
	return took, c.Close()
}
