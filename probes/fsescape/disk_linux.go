package fsescape

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/brainst0rm/sandbox-redteam/backends"
	"github.com/brainst0rm/sandbox-redteam/internal/attack"
	"github.com/brainst0rm/sandbox-redteam/internal/canary"
	"github.com/brainst0rm/sandbox-redteam/internal/wire"
)

const (
	lookChunk = 128 << 10
	// maxLook bounds how much of an image is searched for the token.
	maxLook = 1 << 30
)

// diskResult says what a write from inside did to image files of the host.
type diskResult struct {
	files    int
	hit      string // the kind of file that holds the token, for the report
	err      error
	restored error
}

// look searches image files for the token that was written inside.
func look(files []string, token string) diskResult {
	r := diskResult{}
	for _, name := range files {
		found, regular, err := holds(name, []byte(token))
		if err != nil {
			r.err = fmt.Errorf("search an image: %w", err)
			continue
		}
		if regular {
			r.files++
		}
		if found {
			r.hit = "an image file of the host holds what was written inside"
		}
	}
	return r
}

func holds(name string, token []byte) (found, regular bool, err error) {
	st, err := os.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return false, false, err
	}
	f, err := os.Open(name)
	if err != nil {
		return false, false, err
	}
	defer f.Close()
	buf, kept := make([]byte, lookChunk), 0
	for total := 0; total < maxLook; {
		n, err := f.Read(buf[kept:])
		total += n
		have := buf[:kept+n]
		if bytes.Contains(have, token) {
			return true, true, nil
		}
		if err == io.EOF {
			return false, true, nil
		}
		if err != nil {
			return false, true, err
		}
		kept = copy(buf, have[max(0, len(have)-len(token)):])
	}
	return false, true, nil
}

// restore has the payload put back what it overwrote, so that the sandbox is
// fit for the next probe also where the write got through.
func (r *diskResult) restore(ctx context.Context, ex backends.Executor, t canary.Trial) {
	var back []attack.DiskContent
	for _, a := range t.Tried(attack.FSDiskWrite) {
		at, err := strconv.ParseInt(a.Detail, 10, 64)
		if a.Result == wire.ResultOK && err == nil && len(a.Data) == attack.SectorSize {
			back = append(back, attack.DiskContent{Device: a.Target, Offset: at, Data: a.Data})
		}
	}
	if len(back) == 0 {
		return
	}
	r.restored = canary.Run(ctx, ex, attack.FSEscape, toolDeadline, func(nonce string) any {
		return attack.FSEscapeParams{Nonce: nonce, Restore: back}
	}).Err
}
