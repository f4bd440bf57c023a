package mock

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/brainst0rm/sandbox-redteam/internal/agent"
	"github.com/brainst0rm/sandbox-redteam/internal/guest"
	"github.com/brainst0rm/sandbox-redteam/internal/integrity"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

// goldenEpoch is in the agent's memory at boot, and again after every reset.
const goldenEpoch = "golden"

// digest stands in the mock agent's hello: it is this program, not an image.
const digest = "6d6f636b00000000000000000000000000000000000000000000000000000000"

// instance is one running world: an agent that serves it and a client.
type instance struct {
	world  *world
	client *guest.Client
	golden string // digest that names the golden state
	base   integrity.Baseline

	mu      sync.Mutex
	process *process
	stopped bool
}

// process is one life of the agent. A reset begins a new one.
type process struct {
	near *conn
	done chan struct{}
}

func launch(w *world) *process {
	near, far := newPipe()
	p := &process{near: near, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// The stream's end is the only way in which it ends.
		_ = agent.Serve(context.Background(), far, agent.Options{Table: w, Digest: digest, Epoch: goldenEpoch, World: w, KeepTree: w.leaks.keepTree()})
	}()
	return p
}

func (p *process) kill() {
	_ = p.near.Close()
	<-p.done
}

// start boots w and takes its baseline.
func start(ctx context.Context, w *world, frameTimeout time.Duration, log *slog.Logger) (*instance, error) {
	i := &instance{world: w, process: launch(w)}
	client, err := guest.Connect(ctx, guest.Options{AgentSHA256: digest, FrameTimeout: frameTimeout, Grace: grace, Log: log,
		NoLimits: w.leaks.noLimits(), Dial: i.dial})
	if err != nil {
		i.process.kill()
		return nil, err
	}
	i.client = client
	var fds wire.OpenFDCount
	if err := client.Query(ctx, wire.QueryOpenFDCount, &fds); err != nil {
		i.stop()
		return nil, err
	}
	i.golden = w.fsHash()
	i.base = integrity.Baseline{FSHash: i.golden, OpenFDCount: fds.Count, VMMState: integrity.StateRunning}
	return i, nil
}

func (i *instance) dial(context.Context) (io.ReadWriteCloser, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process.near, nil
}

// restart ends the agent and starts another: what was in its memory is gone.
func (i *instance) restart() {
	i.mu.Lock()
	old := i.process
	stopped := i.stopped
	i.mu.Unlock()
	old.kill()
	if stopped {
		return
	}
	next := launch(i.world)
	i.mu.Lock()
	i.process = next
	stopped = i.stopped
	i.mu.Unlock()
	if stopped {
		next.kill()
	}
}

// dead reports whether the agent is gone without anybody having asked for it.
func (i *instance) dead() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.process.done:
		return true
	default:
		return i.stopped
	}
}

// stop ends everything and waits for it.
func (i *instance) stop() {
	i.mu.Lock()
	i.stopped = true
	p := i.process
	i.mu.Unlock()
	if i.client != nil {
		_ = i.client.Close()
	}
	p.kill()
	i.world.close()
}
