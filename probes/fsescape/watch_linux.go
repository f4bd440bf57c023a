package fsescape

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/probes"
)

const (
	imageSize = 512 << 10
	// markerAt is where the disk image canary holds its secret.
	markerAt = 256<<10 - 40 // across two chunks of a scan
)

// watch holds the canaries of one execution. None is used twice.
type watch struct {
	secret *canary.Secret
	proc   *canary.Process
	procOK error
	socket *canary.Listener
	sockOK error
	// disk is an image file with a secret of its own in it.
	disk, diskSecret string
	token            string
	sockToken        string
	planted          string
}

func newWatch(env *probes.Env, dir string, id backends.Credential) (w *watch, err error) {
	w = &watch{token: canary.NewToken(), sockToken: canary.NewToken(), diskSecret: canary.NewToken()}
	defer func() {
		if err != nil {
			w.stop()
		}
	}()
	if w.secret, err = canary.NewSecret(dir, id); err != nil {
		return w, err
	}
	env.Sabotage("secret canary", w.secret.Stop)
	if w.proc, w.procOK = canary.StartProcess(id); w.procOK == nil {
		env.Sabotage("environment canary", w.proc.Stop)
	}
	if w.socket, w.sockOK = canary.ListenUnix(dir); w.sockOK == nil {
		w.socket.Expect(w.sockToken)
		env.Sabotage(w.socket.Kind(), w.socket.Stop)
	}
	w.disk = filepath.Join(dir, "bsm-disk-"+canary.NewToken())
	if err = makeImage(w.disk, w.secret.Marker+" "+w.diskSecret); err != nil {
		return w, fmt.Errorf("make a disk image canary: %w", err)
	}
	return w, canary.Own(w.disk, id)
}

// makeImage makes a file of zeros with a secret in it.
func makeImage(path, secret string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(secret), markerAt)
	return errors.Join(err, f.Truncate(imageSize), f.Close())
}

func (w *watch) images() []string { return []string{w.disk} }

func (w *watch) stop() {
	if w.socket != nil {
		w.socket.Stop()
	}
	if w.proc != nil {
		w.proc.Stop()
	}
	if w.secret != nil {
		w.secret.Stop()
	}
}

func (w *watch) params(nonce string) attack.FSEscapeParams {
	p := attack.FSEscapeParams{Nonce: nonce, Path: w.secret.Path, Append: "bsm-append " + w.token, EnvName: canary.EnvName,
		Marker: w.secret.Marker, Devices: []string{w.disk}, DiskToken: w.token, SocketToken: w.sockToken}
	if kind, handle, err := w.secret.Handle(); err == nil {
		p.HandleType, p.Handle = kind, handle
	}
	if w.sockOK == nil {
		p.Socket = w.socket.Path
	}
	return p
}

// execute runs the payload once and looks at every canary afterwards.
func (w *watch) execute(ctx context.Context, ex backends.Executor, watched []string, tune func(*attack.FSEscapeParams)) trial {
	t := trial{Trial: canary.Run(ctx, ex, attack.FSEscape, toolDeadline, func(nonce string) any {
		p := w.params(nonce)
		tune(&p)
		return p
	})}
	t.disk = look(watched, w.token)
	t.disk.restore(ctx, ex, t.Trial)
	t.access, t.lookErr = w.secret.Observe()
	secrets := []string{w.secret.Token, w.diskSecret}
	if w.procOK == nil {
		secrets = append(secrets, w.proc.EnvSecret)
	}
	if len(w.planted) == canary.TokenLen {
		secrets = append(secrets, w.planted)
	}
	leaks := canary.Scan(secrets, t.Out...)
	t.fileLeak, t.imageLeak = leaks[0], leaks[1]
	for _, how := range leaks[2:] {
		if how != "" {
			t.envLeak = how
		}
	}
	if w.sockOK == nil {
		t.socket, t.strangers = w.socket.Seen(w.sockToken) > 0, w.socket.Anonymous()
	}
	return t
}

// health says of each canary whether it still sees; nil means yes.
type health struct{ secret, proc, socket error }

func (w *watch) check(ctx context.Context) health {
	h := health{secret: w.secret.SelfCheck(ctx), proc: w.procOK, socket: w.sockOK}
	if h.proc == nil {
		h.proc = w.proc.SelfCheck(ctx)
	}
	if h.socket == nil {
		h.socket = w.socket.SelfCheck(ctx)
	}
	return h
}
