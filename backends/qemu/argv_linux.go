package qemu

import (
	"fmt"
	"strconv"
	"strings"
)

// vmSpec is everything that decides a QEMU command line. Descriptors are
// numbers in QEMU, so that it needs neither a path of ours nor the permission
// to walk to it.
type vmSpec struct {
	Accel   string // accelTCG or accelKVM
	MemMiB  int64
	Machine string
	// RAM is the guest's memory. The golden run shares it; a restored one has
	// a private copy-on-write view of it.
	RAM      int
	Shared   bool
	Kernel   int
	Initrd   int
	Cmdline  string
	Rootfs   int
	Writable bool // leak: the guest may write to its disk
	QMP      int  // listening socket
	Agent    int  // listening socket
	Signal   int  // leak: listening socket of the port that signals; 0 is none
	UserNet  bool // leak
	ShareDir int  // leak: descriptor of a host directory; 0 is none
	// Incoming waits for a snapshot instead of booting a kernel.
	Incoming bool
}

const (
	accelTCG = "tcg"
	accelKVM = "kvm"

	// agentPort is the virtio-serial port that bsm-agent serves.
	agentPort = "bsm.agent.0"
	// signalPort is the port of the leak "signal-port".
	signalPort = "bsm.signal.0"
	// shareTag is the mount tag of the leak "shared-dir".
	shareTag = "bsmshare"
	// shareMount is where the guest mounts it.
	shareMount = "/mnt/share"
	// guestNet is the guest's address in the leak "user-net". No route leads
	// beyond it, so that QEMU's gateway, which is the host's loopback address,
	// is all that the guest reaches.
	guestNet = "10.0.2.15/24"
)

// args builds the command line without the program. It is pure.
func (s vmSpec) args() []string {
	cpu := "max"
	if s.Accel == accelKVM {
		cpu = "host"
	}
	accel := s.Accel
	if accel == accelTCG {
		accel += ",tb-size=64" // MiB; the default takes a share of the host's memory
	}
	share := "off"
	if s.Shared {
		share = "on"
	}
	readonly := "on"
	if s.Writable {
		readonly = "off"
	}
	a := []string{
		"-name", "bsm-redteam",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-M", s.Machine + ",memory-backend=mem",
		"-accel", accel, "-cpu", cpu, "-smp", "1", "-m", strconv.FormatInt(s.MemMiB, 10),
		"-object", fmt.Sprintf("memory-backend-file,id=mem,size=%dM,mem-path=%s,share=%s", s.MemMiB, fdPath(s.RAM), share),
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d,server=on,wait=off", s.QMP), "-mon", "chardev=qmp,mode=control",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-drive", "if=none,id=root,format=raw,file.driver=file,file.locking=off,file.filename=" + fdPath(s.Rootfs) + ",readonly=" + readonly,
		"-device", "virtio-blk-pci,drive=root",
		"-device", "virtio-serial-pci",
		"-chardev", fmt.Sprintf("socket,id=agent,fd=%d,server=on,wait=off", s.Agent),
		"-device", "virtserialport,chardev=agent,name=" + agentPort,
	}
	if s.Signal != 0 {
		a = append(a, "-chardev", fmt.Sprintf("socket,id=signal,fd=%d,server=on,wait=off", s.Signal),
			"-device", "virtserialport,chardev=signal,name="+signalPort)
	}
	if s.UserNet {
		a = append(a, "-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	if s.ShareDir != 0 {
		a = append(a, "-fsdev", "local,id=share,security_model=none,multidevs=remap,path="+fdPath(s.ShareDir),
			"-device", "virtio-9p-pci,fsdev=share,mount_tag="+shareTag)
	}
	if s.Incoming {
		return append(a, "-incoming", "defer")
	}
	return append(a, "-kernel", fdPath(s.Kernel), "-initrd", fdPath(s.Initrd), "-append", s.Cmdline)
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// guestCmdline extends what the image wants to be booted with.
func guestCmdline(base string, pids int, l leaks) string {
	words := []string{base}
	if pids > 0 {
		words = append(words, "bsm.pids="+strconv.Itoa(pids))
	}
	if l[leakUserNet] {
		words = append(words, "bsm.net="+guestNet)
	}
	if l[leakSharedDir] {
		words = append(words, "bsm.share="+shareTag+","+shareMount)
	}
	if l[leakKeepTree] {
		words = append(words, "bsm.keep-tree")
	}
	return strings.Join(words, " ")
}
