package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	idleTime = time.Minute
	// idleTarget is the share of a core that an agent may take that has nothing to do.
	idleTarget = 0.005
	// lookTarget is the CPU that one full look at a host may take.
	lookTarget = 50 * time.Millisecond
	// ticksPerSecond is the unit of /proc/<pid>/stat, which is 100 on every Linux that Go runs on (USER_HZ).
	ticksPerSecond = 100
)

// idle measures what an agent on an etcd node takes while nothing happens.
func idle(ctx context.Context, s *stage, t *table) error {
	pid := s.Agent(node(1)).PID()
	before, err := cpuTime(pid)
	if err != nil {
		return err
	}
	t.note("leaving the agents alone for %s", idleTime)
	begun := time.Now()
	if err := leave(ctx, idleTime); err != nil {
		return err
	}
	after, err := cpuTime(pid)
	if err != nil {
		return err
	}
	used, err := memoryOf(pid)
	if err != nil {
		return err
	}
	share := (after - before).Seconds() / time.Since(begun).Seconds()
	t.add(row{
		what:   fmt.Sprintf("idle agent on an etcd node; memory %s", used),
		median: fmt.Sprintf("%.2f %% of a core", share*100), target: "≤ 0.5 %", missed: share > idleTarget,
	})
	return nil
}

// cpuTime is what a process has used, user and system (proc_pid_stat(5), fields 14 and 15).
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("reading /proc/%d/stat: %d fields", pid, len(fields))
	}
	user, err := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(err, err2)
}

// look runs the benchmark of looking at a host, which lives beside the code that looks.
func look(ctx context.Context, _ *stage, t *table) error {
	root, err := testenv.RepositoryRoot()
	if err != nil {
		return err
	}
	run := exec.CommandContext(ctx, "go", "test", "-run=^$", "-bench=^BenchmarkLook$", "-benchtime=50x", "./internal/host")
	run.Dir = root
	out, err := run.CombinedOutput()
	if err != nil {
		return fmt.Errorf("running the benchmark of internal/host: %w: %s", err, out)
	}
	cost, err := cpuPerLook(string(out))
	if err != nil {
		return err
	}
	t.add(row{
		what: "one full look at a host with 2,000 processes", median: ms(cost) + " of CPU, mean", target: "≤ 50 ms", missed: cost > lookTarget,
	})
	return nil
}

// cpuPerLook finds the benchmark's own measure of what a look takes.
func cpuPerLook(out string) (time.Duration, error) {
	found := regexp.MustCompile(`(?m)^BenchmarkLook\S*\s.*?([0-9.]+) cpu-ms/op`).FindStringSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("reading the benchmark of internal/host: no cpu-ms/op in %q", out)
	}
	return time.ParseDuration(found[1] + "ms")
}
