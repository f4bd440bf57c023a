// Package canary makes the things on the host that only an escape can touch:
// listeners, secret files, processes, a shared memory segment. Each can say
// what it saw, prove on request that it still sees, and be stopped.
//
// Two kinds of token are kept apart. A send token is handed to the payload and
// identifies its visit. A secret token never enters a sandbox; the host looks
// for it in everything that comes out. Both are drawn anew for every execution,
// so what a control leaves behind can never be taken for an attack.
package canary

import "github.com/brainst0rm/sandbox-redteam/internal/wire"

// TokenLen is the length of a token in characters.
const TokenLen = 2 * wire.NonceSize

// NewToken draws a token: 32 lower-case hex digits, 128 random bits.
func NewToken() string { return wire.NewNonceString() }
