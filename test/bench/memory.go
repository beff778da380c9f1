package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
)

const (
	// quiet is how long an agent is left alone before its memory is read.
	quiet           = 30 * time.Second
	residentTarget  = 30 << 20
	anonymousTarget = 10 << 20
)

// usage is the memory of a process, in bytes.
type usage struct {
	// resident is all of it, anonymous what is no file's: the kernel can take back the rest whenever it likes.
	resident, anonymous int64
}

// memory measures an agent on a worker that was released and since when nothing happens, beside a program that does
// nothing but watch its Node with client-go's typed client.
func memory(ctx context.Context, s *stage, t *table) error {
	const name = "worker-memory"
	if _, err := s.held(ctx, name, 1); err != nil {
		return err
	}
	node := name + "1"
	if _, err := s.open(ctx, node); err != nil {
		return err
	}
	watcher, err := s.startWatcher(ctx, node)
	if err != nil {
		return err
	}
	t.note("leaving the agent alone for %s", quiet)
	if err := leave(ctx, quiet); err != nil {
		return err
	}
	least, err := memoryOf(watcher.PID())
	if err != nil {
		return err
	}
	used, err := memoryOf(s.Agent(node).PID())
	if err != nil {
		return err
	}
	if err := watcher.Stop(ctx); err != nil {
		return err
	}
	t.add(row{what: "memory of a program that only watches its Node, with client-go's typed client", median: least.String()})
	t.add(row{
		what: "memory of an idle agent on a worker", median: used.String(),
		ratio:  fmt.Sprintf("×%.2f, anonymous ×%.2f", float64(used.resident)/float64(least.resident), float64(used.anonymous)/float64(least.anonymous)),
		target: "≤ 30 MiB, anonymous ≤ 10", missed: used.resident > residentTarget || used.anonymous > anonymousTarget,
	})
	return nil
}

// startWatcher builds and starts the program that the agent is compared with.
func (s *stage) startWatcher(ctx context.Context, node string) (*testenv.Process, error) {
	root, err := testenv.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(s.Dir, "watcher")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", program, "./test/bench/watcher")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the watcher: %w: %s", err, out)
	}
	account, err := s.API.ServiceAccountConfig(ctx, site.Namespace, "holdfast-agent", node)
	if err != nil {
		return nil, err
	}
	kubeconfig := program + ".kubeconfig"
	if err := testenv.WriteKubeconfig(kubeconfig, account); err != nil {
		return nil, err
	}
	return testenv.StartProcess(testenv.ProcessOptions{Path: program, Args: []string{kubeconfig, node}, LogFile: program + ".log"})
}

// memoryOf adds a process' mappings up. /proc/<pid>/status would be off by what each CPU has counted by itself.
func memoryOf(pid int) (usage, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return usage{}, err
	}
	return parseMemory(string(text))
}

func parseMemory(rollup string) (usage, error) {
	var u usage
	for line := range strings.Lines(rollup) {
		fields := strings.Fields(line)
		into, known := map[string]*int64{"Rss:": &u.resident, "Anonymous:": &u.anonymous}[fields[0]]
		if !known {
			continue
		}
		size, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("reading the memory of a process: %w", err)
		}
		*into = size << 10
	}
	if u.resident == 0 || u.anonymous == 0 {
		return usage{}, fmt.Errorf("reading the memory of a process: %q says nothing of it", rollup)
	}
	return u, nil
}

func (u usage) String() string {
	return fmt.Sprintf("%.1f MiB, anonymous %.1f", float64(u.resident)/(1<<20), float64(u.anonymous)/(1<<20))
}
