package payload

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	// stepBytes is touched between two lines to the parent.
	stepBytes = 1 << 20
	// chunkBytes is mapped at a time where the big mapping was refused.
	chunkBytes = 4 << 20
	// pauseBytes is touched between two pauses of stepPause, which give the
	// host's meter time to look.
	pauseBytes = 4 << 20
	stepPause  = 200 * time.Microsecond
)

// takeMemory maps what is asked for and touches it page by page, but no more
// than the host allowed.
func takeMemory(p attack.ExhaustParams, out teller) int {
	s := &space{}
	if err := s.grow(p.AskBytes); err != nil {
		out.tell(wordAsked, errnoOf(err))
	}
	page := int64(os.Getpagesize())
	held := int64(0)
	for held < p.StopBytes {
		step := min(stepBytes, p.StopBytes-held)
		for at := held; at < held+step; at += page {
			b, err := s.at(at)
			if err != nil {
				out.tell(wordReached, at)
				out.tell(wordRefused, errnoOf(err))
				time.Sleep(p.Hold)
				return 0
			}
			b[0] = byte(at/page) | 1
		}
		held += step
		if !out.tell(wordReached, held) {
			return 1
		}
		if held%pauseBytes == 0 {
			time.Sleep(stepPause)
		}
	}
	time.Sleep(p.Hold)
	out.tell(wordStopped, held)
	runtime.KeepAlive(s)
	return 0
}

// space is a run of mappings that are used in order.
type space struct {
	maps [][]byte
	base int64 // offset of the last mapping
	size int64
}

// grow maps n more bytes. The kernel need not reserve them: what counts is what
// is touched. Huge pages would take more than that.
func (s *space) grow(n int64) error {
	m, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // EINVAL where there are none
	s.maps, s.base, s.size = append(s.maps, m), s.size, s.size+n
	return nil
}

// at returns the memory at an offset, which must not decrease.
func (s *space) at(off int64) ([]byte, error) {
	if off >= s.size {
		if err := s.grow(chunkBytes); err != nil {
			return nil, err
		}
	}
	return s.maps[len(s.maps)-1][off-s.base:], nil
}

// takeFDs opens the root directory again and again.
func takeFDs(p attack.ExhaustParams, out teller) int {
	n := 0
	for ; n < p.StopCount; n++ {
		if _, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			out.tell(wordReached, n)
			out.tell(wordRefused, errnoOf(err))
			time.Sleep(p.Hold)
			return 0
		}
	}
	out.tell(wordReached, n)
	time.Sleep(p.Hold)
	out.tell(wordStopped, n)
	return 0
}

// takePids forks children that do nothing but sleep. It ends them before it
// returns; should it die before, the kernel does.
func takePids(p attack.ExhaustParams, out teller) int {
	spareThreads()
	runtime.LockOSThread() // for good: the children die with this thread
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	// A child is a copy of this one thread without a Go runtime around it: no
	// signal handler may ever run in it.
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 1
	}
	life := unix.NsecToTimespec(p.Life.Nanoseconds())
	self := uintptr(os.Getpid())
	var pids []int
	var refused error
	for len(pids) < p.StopCount {
		pid, errno := forkSleeper(&life, self)
		if errno != 0 {
			refused = errno
			break
		}
		pids = append(pids, int(pid))
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	told := out.tell(wordReached, len(pids))
	if refused != nil {
		told = told && out.tell(wordRefused, errnoOf(refused))
	}
	time.Sleep(p.Hold)
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for _, pid := range pids {
		for {
			if _, err := unix.Wait4(pid, nil, 0, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
	}
	if refused == nil {
		told = told && out.tell(wordStopped, len(pids))
	}
	if !told {
		return 1
	}
	return 0
}

func errnoOf(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		if _, name := wire.Classify(errno); name != "" {
			return name
		}
	}
	return "E?"
}
