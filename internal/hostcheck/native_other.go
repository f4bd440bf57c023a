//go:build !darwin

package hostcheck

func native(*Facts) {}
