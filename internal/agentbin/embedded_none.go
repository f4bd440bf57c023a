//go:build !release

package agentbin

import "embed"

// Only releases carry agents.
var embedded embed.FS
