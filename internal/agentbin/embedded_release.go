//go:build release

package agentbin

import "embed"

// No checkout holds the directory: scripts/internal/release puts freshly built
// agents there with go build's -overlay, so that a stale one cannot be embedded.
//
//go:embed embedded
var embedded embed.FS
