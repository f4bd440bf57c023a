package backendtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/brainst0rm/sandbox-redteam/backends"
)

func (s *suite) lifecycle() {
	sb := s.make()
	require.NotEmpty(s, sb.Backend())
	require.NoError(s, sb.Shutdown(s.Context()), "shutting down what never booted is no error")
	for range 2 { // a shut down sandbox can be booted again
		s.bootAgain(sb)
		pid := vmmPID(sb)
		marker := s.dropMarker(sb)
		require.NoError(s, sb.Boot(s.Context()), "booting a ready sandbox does nothing")
		require.Equal(s, backends.StateReady, sb.State())
		require.Equal(s, pid, vmmPID(sb), "a second boot must not replace the instance")
		require.True(s, s.markerThere(sb, marker), "a second boot must not replace the instance")
		s.noop(sb)
		s.shutdown(sb)
		require.NoError(s, sb.Shutdown(s.Context()), "a second shutdown is no error")
	}
}

func vmmPID(sb backends.Sandbox) int {
	if p, ok := sb.(backends.Provenancer); ok {
		return p.Provenance().VMMPID
	}
	return 0
}

func (s *suite) concurrentBoots() {
	sb := s.make()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() { errs[i] = sb.Boot(s.Context()) })
	}
	wg.Wait()
	s.Cleanup(func() { s.shutdownQuietly(sb) })
	require.NoError(s, errors.Join(errs...))
	s.noop(sb)
	s.shutdown(sb)
}

func (s *suite) notBooted() {
	sb := s.make()
	check := func(when string) {
		_, err := sb.Execute(s.Context(), backends.Invocation{Tool: "noop"})
		s.typed(err, "execute "+when)
		_, err = sb.Reset(s.Context())
		s.typed(err, "reset "+when)
		require.Equal(s, backends.StateNotBooted, sb.State(), when)
	}
	check("before boot")
	s.bootAgain(sb)
	s.shutdown(sb)
	check("after shutdown")
}

func (s *suite) cancelDuringBoot() {
	sb := s.make()
	begin := time.Now()
	s.bootAgain(sb)
	whole := time.Since(begin)
	s.shutdown(sb)
	for _, tenth := range []time.Duration{0, 1, 3, 5, 7, 9} {
		ctx, cancel := context.WithTimeout(s.Context(), whole*tenth/10)
		begin := time.Now()
		err := sb.Boot(ctx)
		cancel()
		require.Less(s, time.Since(begin), whole*tenth/10+5*time.Second, "boot must return soon after its context")
		if err == nil {
			s.shutdown(sb)
			continue
		}
		require.NotEqual(s, backends.StateReady, sb.State())
		s.nothingLeft("after a cancelled boot")
		_, err = sb.Execute(s.Context(), backends.Invocation{Tool: "noop"})
		s.typed(err, "execute after a cancelled boot")
	}
	require.NoError(s, sb.Shutdown(s.Context()))
	s.bootAgain(sb) // none of that has spoilt it
	s.noop(sb)
	s.shutdown(sb)
}

func (s *suite) crash() {
	sb := s.boot()
	failed := make(chan error, 1)
	go func() {
		_, err := sb.Execute(s.Context(), backends.Invocation{Tool: "time.sleep", Params: map[string]int{"ms": 60_000}, Deadline: time.Minute})
		failed <- err
	}()
	s.noop(sb) // the call above was sent before this one, or is sent to a dead instance
	s.h.Kill(s, sb)
	select {
	case err := <-failed:
		s.typed(err, "a call in flight at a crash")
	case <-time.After(20 * time.Second):
		s.Fatal("a call in flight at a crash waits for its deadline")
	}
	begin := time.Now()
	_, err := sb.Execute(s.Context(), backends.Invocation{Tool: "noop"})
	s.typed(err, "a call after a crash")
	require.Less(s, time.Since(begin), 20*time.Second)
	s.shutdown(sb)
	s.bootAgain(sb)
	s.noop(sb)
	s.shutdown(sb)
}

func (s *suite) shutdownUnderCall() {
	sb := s.boot()
	failed := make(chan error, 1)
	go func() {
		_, err := sb.Execute(s.Context(), backends.Invocation{Tool: "time.sleep", Params: map[string]int{"ms": 60_000}, Deadline: time.Minute})
		failed <- err
	}()
	s.noop(sb)
	s.shutdown(sb)
	select {
	case err := <-failed:
		s.typed(err, "a call in flight at shutdown")
	case <-time.After(20 * time.Second):
		s.Fatal("a call in flight at shutdown waits for its deadline")
	}
}
