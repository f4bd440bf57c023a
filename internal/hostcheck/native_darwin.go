package hostcheck

import "golang.org/x/sys/unix"

// native reads what macOS says by sysctl, as there is no /proc.
func native(f *Facts) {
	f.CPU = sysctl("machdep.cpu.brand_string")
	f.Kernel = sysctl("kern.osrelease")
	if present, err := unix.SysctlUint32("kern.hv_vmm_present"); err == nil {
		f.Virtualised = "none"
		if present != 0 {
			f.Virtualised = "hypervisor"
		}
	}
}

func sysctl(name string) string {
	s, err := unix.Sysctl(name)
	if err != nil {
		return ""
	}
	return s
}
