package qemu

import "context"

const kvmDevice = "/dev/kvm"

func (s *Sandbox) chooseAccel(ctx context.Context) error { return nil }
