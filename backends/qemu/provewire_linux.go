package qemu

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"

	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// proveNoLimits lets this sandbox's own client meet an agent whose hello is
// longer than any frame may be.
func (s *Sandbox) proveNoLimits(ctx context.Context) error {
	host, agent := net.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			defer func() { _ = agent.Close() }()
			opening := make([]byte, wire.PreambleSize)
			if _, err := io.ReadFull(agent, opening); err != nil {
				return err
			}
			hello, err := wire.Encode(wire.Hello{Type: wire.TypeHello, Version: 1, Arch: "amd64", Epoch: "e", Tools: []string{}})
			if err != nil {
				return err
			}
			if _, err := agent.Write(opening); err != nil {
				return err
			}
			body := append(hello, bytes.Repeat([]byte(" "), wire.MaxFrame)...)
			n := len(body)
			if _, err := agent.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}); err != nil {
				return err
			}
			_, err = agent.Write(body)
			return err
		}()
	}()
	c, err := guest.Connect(ctx, guest.Options{NoLimits: s.leaks[leakNoLimits], Dial: func(context.Context) (io.ReadWriteCloser, error) { return host, nil }})
	if err == nil {
		err = c.Close()
	} else {
		err = errors.Join(errors.New("the decoder refused a frame over the cap"), err)
	}
	_ = host.Close()
	<-served
	return err
}
