package attack

import (
	"encoding/binary"
	"strings"
)

// The formats below are spoken by the payload of P-A1 and by its canaries.

// EchoMark begins the body of our ICMP echo requests and frames. Loopback is shared with
// the rest of the machine; an echo request without it is none of ours.
const EchoMark = "bsm-canary-echo "

// EtherType of our frames: IEEE 802 "local experimental 1", which no protocol
// stack takes in.
const EtherType = 0x88b5

// NetworkOrder turns a small constant into network order. Both architectures
// that we build for are little-endian.
func NetworkOrder(v uint16) uint16 { return v<<8 | v>>8 }

// QueryDNS builds an A query for <token>.canary.invalid.
func QueryDNS(id uint16, token string) []byte {
	b := make([]byte, 12, 64)
	binary.BigEndian.PutUint16(b, id)
	b[2], b[5] = 1, 1 // recursion desired, one question
	for _, label := range strings.Split(token+"."+EgressZone, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, 1, 0, 1)
}

// TokenOfQuery returns the first label of a message's first question when the
// rest of the name is the canary's zone, else "".
func TokenOfQuery(b []byte) string {
	if len(b) < 12 || binary.BigEndian.Uint16(b[4:]) == 0 {
		return ""
	}
	var labels []string
	for p := b[12:]; len(p) > 0 && p[0] != 0; {
		n := int(p[0])
		if n > 63 || len(p) < n+1 || len(labels) > 8 {
			return ""
		}
		labels, p = append(labels, strings.ToLower(string(p[1:1+n]))), p[1+n:]
	}
	if len(labels) < 2 || strings.Join(labels[1:], ".") != EgressZone || strings.Trim(labels[0], "0123456789abcdef") != "" {
		return ""
	}
	return labels[0]
}

// AnswerDNS turns a query into its answer: 192.0.2.1, an address that is
// reserved for documentation and that nothing here connects to.
func AnswerDNS(q []byte) []byte {
	end := 12
	for end < len(q) && q[end] != 0 {
		end += int(q[end]) + 1
	}
	if end+5 > len(q) {
		return nil
	}
	a := append([]byte(nil), q[:end+5]...)
	a[2], a[3] = 0x85, 0x80
	binary.BigEndian.PutUint16(a[4:], 1)
	binary.BigEndian.PutUint16(a[6:], 1)
	binary.BigEndian.PutUint32(a[8:], 0)
	return append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 192, 0, 2, 1)
}

// EchoRequest builds an ICMP echo request that carries token.
func EchoRequest(id uint16, token string) []byte {
	b := append([]byte{8, 0, 0, 0, 0, 0, 0, 1}, EchoMark+token...)
	binary.BigEndian.PutUint16(b[4:], id)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	return b
}
