package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hello = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "x"}, "capabilities": ["oob"]}}`

type request struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        string          `json:"id"`
}

// dial returns both ends of a Unix connection.
func dial(t *testing.T) (client, server *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "q")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	client, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	server, err = l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// serve greets and answers each request by what answer returns; "" is silence.
func serve(t *testing.T, server *net.UnixConn, answer func(request) string) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Add(1)
	t.Cleanup(func() { _ = server.Close(); wg.Wait() })
	go func() {
		defer wg.Done()
		_, _ = fmt.Fprintln(server, hello)
		s := bufio.NewScanner(server)
		for s.Scan() {
			var r request
			if json.Unmarshal(s.Bytes(), &r) != nil {
				return
			}
			if r.Execute == "qmp_capabilities" {
				_, _ = fmt.Fprintf(server, `{"return": {}, "id": %q}`+"\r\n", r.ID)
				continue
			}
			if a := answer(r); a != "" {
				_, _ = io.WriteString(server, strings.ReplaceAll(a, "$ID", r.ID)+"\r\n")
			}
		}
	}()
}

func connect(t *testing.T, answer func(request) string, events func(Event)) *Client {
	t.Helper()
	client, server := dial(t)
	serve(t, server, answer)
	c, err := New(t.Context(), client, events)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestCommands(t *testing.T) {
	events := make(chan Event, 4)
	c := connect(t, func(r request) string {
		switch r.Execute {
		case "query-status":
			return `{"timestamp": {}, "event": "STOP", "data": {"a": 1}}` + "\n" + `{"return": {"status": "paused"}, "id": "$ID"}`
		case "bad":
			return `{"error": {"class": "GenericError", "desc": "no\u001b[31m"}, "id": "$ID"}`
		case "typed":
			return `{"return": {"status": 7}, "id": "$ID"}`
		}
		return `{"return": {}, "id": "someone else's"}` + "\n" + `{"return": {}, "id": "$ID"}`
	}, func(e Event) { events <- e })
	require.Equal(t, "7.2.22", c.Version().String())

	var st struct{ Status string }
	require.NoError(t, c.Do(t.Context(), "query-status", nil, &st))
	require.Equal(t, "paused", st.Status)
	e := <-events
	require.Equal(t, "STOP", e.Name)
	require.JSONEq(t, `{"a":1}`, string(e.Data))

	err := c.Do(t.Context(), "bad", nil, nil)
	var ce *CommandError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, "GenericError", ce.Class)
	require.NotContains(t, err.Error(), "\x1b", "QEMU's text is quoted")

	require.ErrorIs(t, c.Do(t.Context(), "typed", nil, &st), ErrMalformed)
	require.NoError(t, c.Do(t.Context(), "cont", map[string]any{"a": 1}, nil))
}

func TestConcurrentCommandsAreMatchedByID(t *testing.T) {
	c := connect(t, func(r request) string {
		return fmt.Sprintf(`{"return": {"args": %s}, "id": "$ID"}`, r.Arguments)
	}, nil)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			var out struct{ Args int }
			if err := c.Do(t.Context(), "echo", i, &out); err != nil || out.Args != i {
				errs[i] = fmt.Errorf("%d: got %d, %v", i, out.Args, err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
}

func TestDeadlineAndDeath(t *testing.T) {
	t.Run("silence ends with the context, and the session goes on", func(t *testing.T) {
		c := connect(t, func(r request) string {
			if r.Execute == "hang" {
				return ""
			}
			return `{"return": {}, "id": "$ID"}`
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, c.Do(ctx, "hang", nil, nil), context.DeadlineExceeded)
		require.NoError(t, c.Do(t.Context(), "cont", nil, nil))
	})
	t.Run("server dies mid-call", func(t *testing.T) {
		client, server := dial(t)
		serve(t, server, func(request) string { _ = server.Close(); return "" })
		c, err := New(t.Context(), client, nil)
		require.NoError(t, err)
		require.ErrorIs(t, c.Do(t.Context(), "quit", nil, nil), ErrClosed)
		<-c.Done()
		require.ErrorIs(t, c.Do(t.Context(), "again", nil, nil), ErrClosed)
		require.NoError(t, c.Close())
	})
	t.Run("no greeting", func(t *testing.T) {
		client, _ := dial(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := New(ctx, client, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("greeting of another kind", func(t *testing.T) {
		client, server := dial(t)
		_, _ = fmt.Fprintln(server, `{"return": {}}`)
		_, err := New(t.Context(), client, nil)
		require.ErrorIs(t, err, ErrMalformed)
	})
	t.Run("endless line", func(t *testing.T) {
		client, server := dial(t)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = server.Write(bytes.Repeat([]byte("x"), 2*MaxLine)) })
		_, err := New(t.Context(), client, nil)
		require.ErrorIs(t, err, ErrLine)
		wg.Wait()
	})
}

func TestFDPassing(t *testing.T) {
	client, server := dial(t)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			_, _ = fmt.Fprintln(server, hello)
			buf, oob := make([]byte, 4096), make([]byte, 64)
			for {
				n, on, _, _, err := server.ReadMsgUnix(buf, oob)
				if err != nil {
					return err
				}
				var r request
				if err := json.Unmarshal(buf[:n], &r); err != nil {
					return err
				}
				if r.Execute == "getfd" {
					cm, err := unix.ParseSocketControlMessage(oob[:on])
					if err != nil {
						return err
					}
					fds, err := unix.ParseUnixRights(&cm[0])
					if err != nil {
						return err
					}
					_, err = unix.Write(fds[0], []byte("through"))
					_ = unix.Close(fds[0])
					_, _ = fmt.Fprintf(server, `{"return": {}, "id": %q}`+"\n", r.ID)
					return err
				}
				_, _ = fmt.Fprintf(server, `{"return": {}, "id": %q}`+"\n", r.ID)
			}
		}()
	}()
	c, err := New(t.Context(), client, nil)
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	require.NoError(t, c.DoFD(t.Context(), "getfd", map[string]string{"fdname": "state"}, nil, int(f.Fd())))
	require.NoError(t, <-done)
	b, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, "through", string(b))
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte(hello + "\r\n" + `{"return": {}, "id": "1"}` + "\n"))
	f.Add([]byte(`{"event": "STOP"}` + "\n" + `{"error": {"class": "a", "desc": "b"}}`))
	f.Add([]byte("{}\n[]\n\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDecoder(bytes.NewReader(b))
		for {
			m, err := d.next()
			if err != nil {
				return
			}
			if m.Greeting == nil && m.Return == nil && m.Error == nil && m.Event == "" {
				t.Fatal("accepted a message of no kind")
			}
		}
	})
}
