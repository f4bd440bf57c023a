package attack

// NetEgress is the tool of P-A1. It sends a token to each target of a closed
// list and to nothing else.
const NetEgress = "net.egress"

// The ways in which NetEgress sends. Each but ViaPacket waits for an answer, so
// that "ok" in its report means that something answered.
const (
	ViaTCP      = "tcp"
	ViaUDP      = "udp"
	ViaDNS      = "dns"      // a query for <token>.canary.invalid to Address:Port
	ViaICMP     = "icmp"     // an echo request that carries the token
	ViaRaw      = "raw"      // a UDP datagram built on a raw IP socket
	ViaPacket   = "packet"   // a link-layer frame of EtherType with the token
	ViaAbstract = "abstract" // an abstract unix socket named Address
	ViaUnix     = "unix"     // a unix socket at the path Address
	ViaName     = "name"     // TCP to the names of Names that /etc/hosts maps to Address
	ViaVsock    = "vsock"    // socket() only; nothing is dialled
)

// EgressParams are the parameters of NetEgress.
type EgressParams struct {
	Nonce   string         `json:"nonce"`
	Targets []EgressTarget `json:"targets"`
	// TimeoutMS bounds each attempt. Zero means 500.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// EgressTarget is one canary as the sandbox would address it.
type EgressTarget struct {
	// Case is the sub-case that the attempt is reported under.
	Case string `json:"case"`
	// Via is one of the constants above.
	Via string `json:"via"`
	// Address is an IP literal, an abstract name or a path.
	Address string `json:"address,omitempty"`
	Port    int    `json:"port,omitempty"`
	// Names are looked up in /etc/hosts only; no resolver is asked.
	Names []string `json:"names,omitempty"`
	// Token is sent. It identifies the visit and is no secret.
	Token string `json:"token,omitempty"`
}

// EgressAnswer is what a canary answers to a visit with token.
func EgressAnswer(token string) string { return "bsm-canary " + token }

// EgressZone is the domain of the DNS canary.
const EgressZone = "canary.invalid"
