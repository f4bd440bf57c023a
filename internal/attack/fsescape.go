package attack

// FSEscape is the tool of P-A2. It tries to read and to change one canary file
// of the host, and brings back whatever it read there. Everything that it is
// given is public; the secret is only in the file.
const FSEscape = "fs.escape"

// The sub-cases of FSEscape.
const (
	FSAbsolute  = "absolute-path"
	FSTraversal = "traversal"
	FSProcRoot  = "proc-root"
	FSInherited = "inherited-fd"
	FSHandle    = "file-handle"
	FSMounts    = "mounts"
	FSWrite     = "write"
	FSEnviron   = "environ"
	FSBlockScan = "block-scan"
	FSDiskWrite = "disk-write"
	FSSocket    = "runtime-socket"
	FSKnownSock = "runtime-socket-known"
	FSDevMem    = "dev-mem"
)

// FSEscapeParams are the parameters of FSEscape.
type FSEscapeParams struct {
	Nonce string `json:"nonce"`
	// VM is set for a guest kernel of ours: only there are shared directories
	// mounted and its own disks written.
	VM bool `json:"vm,omitempty"`
	// Path is the canary's absolute path on the host; its last element is
	// unique.
	Path string `json:"path"`
	// HandleType and Handle are its file handle, from name_to_handle_at.
	HandleType int32  `json:"handle_type,omitempty"`
	Handle     []byte `json:"handle,omitempty"`
	// Append is what a write adds to the canary.
	Append string `json:"append,omitempty"`
	// EnvName is the variable whose value is looked for in every readable
	// environment. No other variable is brought back.
	EnvName string `json:"env_name,omitempty"`
	// Marker is what the canary's content begins with. It tells the canary
	// from any other file, and is what a scan of a block device looks for.
	Marker string `json:"marker"`
	// ScanBytes bounds the scan of each device. Zero means 32 MiB.
	ScanBytes int64 `json:"scan_bytes,omitempty"`
	// Devices are scanned and written besides those found inside: the control
	// hands in an image file here.
	Devices []string `json:"devices,omitempty"`
	// DiskToken is written into the last sector of Devices and, in a VM, of
	// its own disks. The previous bytes come back as Data, their place as
	// Detail. Empty means that no disk is written.
	DiskToken string `json:"disk_token,omitempty"`
	// Restore puts such bytes back. With it nothing else is done.
	Restore []DiskContent `json:"restore,omitempty"`
	// CanaryOnly leaves block devices and runtime sockets alone that were not
	// handed in. Only the control sets it, which runs on the host itself.
	CanaryOnly bool `json:"canary_only,omitempty"`
	// PlantFD makes the payload open "/" before it looks for inherited
	// directory descriptors, as a careless launcher would. Only the control
	// sets it.
	PlantFD bool `json:"plant_fd,omitempty"`
	// Socket is a canary socket; it is tried along with the well-known paths
	// of container runtimes. connect() and close(), nothing is sent to those.
	Socket      string `json:"socket,omitempty"`
	SocketToken string `json:"socket_token,omitempty"`
}

// FactReadable begins the name of the fact that a device could be read.
const FactReadable = "readable "

// SectorSize is how much of a disk is written.
const SectorSize = 512

// DiskContent is a sector to be put back.
type DiskContent struct {
	Device string `json:"device"`
	Offset int64  `json:"offset"`
	Data   []byte `json:"data"`
}
