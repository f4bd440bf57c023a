package bwrap

import (
	"slices"
	"strconv"
)

// The identity inside: nobody. The ids are not those of any real account.
const (
	insideUID = 65534
	insideGID = 65534
)

// Where things lie inside.
const (
	agentInside = "/bin/bsm-agent"
	tmpInside   = "/tmp"
	shmInside   = "/dev/shm"
)

// spec says what bubblewrap is to build. The zero value, with the paths filled
// in, is the hardened default; every other field loosens it.
type spec struct {
	// RootFS is bound read-only on /.
	RootFS string
	// TmpBytes bounds /tmp and /dev/shm each; 0 leaves them at the kernel's
	// default.
	TmpBytes int64
	// SeccompFD and InfoFD are inherited descriptors; 0 means none.
	SeccompFD, InfoFD, SyncFD int
	// KeepTree is passed on to the agent.
	KeepTree bool
	// Env is set inside, as name and value.
	Env [][2]string

	ShareNet, SharePID, ShareIPC bool
	// HostRoot binds the host's / instead of RootFS; HostRootRW writable.
	HostRoot, HostRootRW bool
	// HostEnv keeps the environment that bubblewrap itself got.
	HostEnv bool
	// KeepSession leaves the sandbox in the session that bubblewrap was started
	// in, and with it that session's terminal.
	KeepSession bool
}

// argv is the command line of bubblewrap, without the program itself. Order
// matters: later mounts cover earlier ones.
func (s spec) argv() []string {
	var a []string
	add := func(args ...string) { a = append(a, args...) }

	if s.ShareNet || s.SharePID || s.ShareIPC {
		add("--unshare-user", "--unshare-uts", "--unshare-cgroup-try")
		for flag, shared := range map[string]bool{"--unshare-net": s.ShareNet, "--unshare-pid": s.SharePID, "--unshare-ipc": s.ShareIPC} {
			if !shared {
				add(flag)
			}
		}
		slices.Sort(a)
	} else {
		add("--unshare-all", "--unshare-user")
	}
	add("--uid", strconv.Itoa(insideUID), "--gid", strconv.Itoa(insideGID), "--hostname", "sandbox")
	add("--die-with-parent")
	if !s.KeepSession {
		add("--new-session")
	}
	add("--cap-drop", "ALL")
	if !s.HostEnv {
		add("--clearenv")
	}
	for _, kv := range s.Env {
		add("--setenv", kv[0], kv[1])
	}

	agent := agentInside
	switch {
	case s.HostRootRW:
		add("--bind", "/", "/")
		agent = s.RootFS + agentInside
	case s.HostRoot:
		add("--ro-bind", "/", "/")
		agent = s.RootFS + agentInside
	default:
		add("--ro-bind", s.RootFS, "/")
	}
	if s.SharePID {
		// A new procfs of a pid namespace that is not ours cannot be mounted.
		add("--bind", "/proc", "/proc")
	} else {
		add("--proc", "/proc")
	}
	add("--dev", "/dev")
	s.tmpfs(add, shmInside)
	add("--remount-ro", "/dev")
	if s.hostRoot() {
		add("--chdir", shmInside) // the host's own /tmp stays visible
	} else {
		s.tmpfs(add, tmpInside)
		add("--chdir", tmpInside)
	}

	if s.SeccompFD != 0 {
		add("--seccomp", strconv.Itoa(s.SeccompFD))
	}
	if s.InfoFD != 0 {
		add("--info-fd", strconv.Itoa(s.InfoFD))
	}
	if s.SyncFD != 0 {
		add("--sync-fd", strconv.Itoa(s.SyncFD))
	}
	add("--", agent, "serve", "--stdio")
	if s.KeepTree {
		add("--keep-tree")
	}
	return a
}

func (s spec) hostRoot() bool { return s.HostRoot || s.HostRootRW }

func (s spec) tmpfs(add func(...string), path string) {
	if s.TmpBytes > 0 {
		add("--size", strconv.FormatInt(s.TmpBytes, 10))
	}
	add("--perms", "1777", "--tmpfs", path)
}

// writable lists the directories inside that a guest can write to.
func (s spec) writable() []string {
	if s.hostRoot() {
		return []string{shmInside}
	}
	return []string{tmpInside, shmInside}
}
