package attack

import (
	"path/filepath"
	"time"
)

// TimeBomb is the tool of P-A5. It outstays its deadline and leaves a survivor.
const TimeBomb = "time.bomb"

// The modes of TimeBomb that are sub-cases.
const (
	BombSleep         = "sleep"          // a plain child beats, the tool sleeps
	BombIgnoreSIGTERM = "ignore-sigterm" // both ignore SIGTERM, SIGINT and SIGHUP
	BombSetsid        = "setsid"         // the child leaves the session
	BombDoubleFork    = "double-fork"    // an orphaned grandchild in its own session
	BombHoldStdout    = "hold-stdout"    // a child in its own session keeps the output pipes
)

// BombModes lists the sub-cases in report order.
func BombModes() []string {
	return []string{BombSleep, BombIgnoreSIGTERM, BombSetsid, BombDoubleFork, BombHoldStdout}
}

// What a call of TimeBomb does.
const (
	// BombProve starts a survivor in every mode of Bombs, sees it beat, ends
	// it, and reports: the same code path, in time.
	BombProve = "prove"
	// BombExplode starts the one survivor of Bombs[0] and stays for Run. It
	// prints nothing: the deadline comes first.
	BombExplode = "explode"
	// BombRead reports the beat counters of Bombs: one attempt per mode with op
	// "beat" and the counter in decimal as its detail, result absent where
	// there is none.
	BombRead = "read"
)

// Bomb is one survivor.
type Bomb struct {
	Mode string `json:"mode"`
	// Token is unique to this survivor. Its processes carry it in their first
	// argument, and its beat file in its name.
	Token string `json:"token"`
}

// TimeBombParams are the parameters of TimeBomb.
type TimeBombParams struct {
	Nonce string `json:"nonce"`
	// Do is one of BombProve, BombExplode, BombRead.
	Do    string `json:"do"`
	Bombs []Bomb `json:"bombs"`
	// Run is how long the tool itself outstays.
	Run time.Duration `json:"run_ns,omitempty"`
	// Life ends a survivor that nobody killed, so that a leak does not stay.
	Life time.Duration `json:"life_ns,omitempty"`
	// Role is set by the tool itself for the processes that it starts.
	Role string `json:"role,omitempty"`
}

// BombArg is the first argument of a survivor's processes.
func BombArg(token string) string { return "bsm-bomb-" + token }

// BeatFiles lists where a survivor's beat counter may be: the first directory
// that can be written inside has it.
func BeatFiles(token string) []string {
	var out []string
	for _, dir := range []string{"/tmp", "/dev/shm", "/run", "/var/tmp"} {
		out = append(out, filepath.Join(dir, "bsm-beat-"+token))
	}
	return out
}
