package attack

// SubstrateAnchor is the tool of P-A6. It leaves a marker inside, which a reset
// has to take away, and looks for it.
const SubstrateAnchor = "substrate.anchor"

// AnchorCase is the sub-case under which SubstrateAnchor reports.
const AnchorCase = "restores"

// SubstrateAnchorParams are the parameters of SubstrateAnchor.
type SubstrateAnchorParams struct {
	Nonce string `json:"nonce"`
	// Marker is part of the name of the file that is left. It is 32 hex digits.
	Marker string `json:"marker"`
	// Drop writes the marker (op "write"; the proof reads it back in the same
	// call); otherwise the tool looks for it (op "read"): result ok where it
	// still is, absent where it is gone.
	Drop bool `json:"drop,omitempty"`
}

// AnchorDirs are the directories that may be writable inside. A marker is left
// in each that is.
func AnchorDirs() []string { return []string{"/tmp", "/dev/shm", "/run", "/var/tmp", "/root", "/"} }
