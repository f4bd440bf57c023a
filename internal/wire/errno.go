package wire

import (
	"strconv"
	"syscall"
)

// errnoNames covers what attempts meet; the standard library has no names and
// golang.org/x/sys/unix.ErrnoName would be this package's only dependency.
var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.ESRCH: "ESRCH", syscall.EINTR: "EINTR", syscall.EIO: "EIO",
	syscall.ENXIO: "ENXIO", syscall.E2BIG: "E2BIG", syscall.ENOEXEC: "ENOEXEC", syscall.EBADF: "EBADF", syscall.ECHILD: "ECHILD",
	syscall.EAGAIN: "EAGAIN", syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.EFAULT: "EFAULT", syscall.EBUSY: "EBUSY",
	syscall.EEXIST: "EEXIST", syscall.EXDEV: "EXDEV", syscall.ENODEV: "ENODEV", syscall.ENOTDIR: "ENOTDIR", syscall.EISDIR: "EISDIR",
	syscall.EINVAL: "EINVAL", syscall.ENFILE: "ENFILE", syscall.EMFILE: "EMFILE", syscall.ENOTTY: "ENOTTY", syscall.ETXTBSY: "ETXTBSY",
	syscall.EFBIG: "EFBIG", syscall.ENOSPC: "ENOSPC", syscall.ESPIPE: "ESPIPE", syscall.EROFS: "EROFS", syscall.EMLINK: "EMLINK",
	syscall.EPIPE: "EPIPE", syscall.ELOOP: "ELOOP", syscall.ENAMETOOLONG: "ENAMETOOLONG", syscall.ENOSYS: "ENOSYS",
	syscall.ENOTEMPTY: "ENOTEMPTY", syscall.EPROTONOSUPPORT: "EPROTONOSUPPORT", syscall.ESOCKTNOSUPPORT: "ESOCKTNOSUPPORT",
	syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.EAFNOSUPPORT: "EAFNOSUPPORT", syscall.EADDRINUSE: "EADDRINUSE",
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.ENETDOWN: "ENETDOWN", syscall.ENETUNREACH: "ENETUNREACH",
	syscall.ECONNABORTED: "ECONNABORTED", syscall.ECONNRESET: "ECONNRESET", syscall.ENOBUFS: "ENOBUFS", syscall.EISCONN: "EISCONN",
	syscall.ENOTCONN: "ENOTCONN", syscall.ETIMEDOUT: "ETIMEDOUT", syscall.ECONNREFUSED: "ECONNREFUSED", syscall.EHOSTDOWN: "EHOSTDOWN",
	syscall.EHOSTUNREACH: "EHOSTUNREACH", syscall.EINPROGRESS: "EINPROGRESS", syscall.ESTALE: "ESTALE", syscall.EDQUOT: "EDQUOT",
	syscall.EUSERS: "EUSERS", syscall.EPROTO: "EPROTO", syscall.EMSGSIZE: "EMSGSIZE", syscall.EDESTADDRREQ: "EDESTADDRREQ",
}

func errnoName(e syscall.Errno) string {
	if n, ok := errnoNames[e]; ok {
		return n
	}
	return "errno " + strconv.Itoa(int(e))
}
