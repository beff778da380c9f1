package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// readyPoll is how often a starting member is asked whether it serves.
	readyPoll = 50 * time.Millisecond
	// askTimeout is how long one such question may take.
	askTimeout = time.Second
	// patience is how long a member may take to be ready, or a membership change to succeed, if the caller does not say.
	patience = 60 * time.Second
)

// Member is one etcd server with the host that it lives on.
type Member struct {
	// Name is etcd's name of it (etcd1), Node the name of its node (etcd-1).
	Name, Node string
	// Root is the directory that plays the host's root.
	Root string
	// IP is its address; ClientURL and PeerURL are the real ones on that address.
	IP, ClientURL, PeerURL string
	// Files are its certificates and those of its host's clients, as they can be opened. Empty without TLS.
	Files MemberFiles

	etcd              *Etcd
	number            int
	listen, advertise []string
	logFile           string

	mu      sync.Mutex // guards process and id
	process *Process
	id      uint64
}

func (e *Etcd) newMember(number int) *Member {
	scheme := "http"
	if e.opts.TLS {
		scheme = "https"
	}
	ip, node := e.opts.IP(number), e.opts.Node(number)
	client, peer := e.opts.ports()
	url := func(port int) string { return scheme + "://" + net.JoinHostPort(ip, strconv.Itoa(port)) }
	m := &Member{
		Name: fmt.Sprintf("etcd%d", number), Node: node, Root: e.opts.HostRoot(number), IP: ip,
		ClientURL: url(client), PeerURL: url(peer),
		etcd: e, number: number, logFile: filepath.Join(e.opts.Dir, fmt.Sprintf("etcd%d.log", number)),
	}
	m.listen, m.advertise = []string{m.ClientURL}, []string{m.ClientURL}
	if e.opts.ClientURLs != nil {
		m.listen, m.advertise = e.opts.ClientURLs(number)
		m.ClientURL = m.listen[0]
	}
	if e.opts.TLS {
		m.Files = m.kubesprayFiles().under(m.Root)
	}
	return m
}

// Launch starts the process of a member that is down, without waiting until it serves.
func (m *Member) Launch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil && m.process.Running() {
		return fmt.Errorf("starting %s: it runs already", m.Name)
	}
	if err := os.MkdirAll(m.etcd.opts.Dir, 0o755); err != nil {
		return fmt.Errorf("starting %s: %w", m.Name, err)
	}
	process, err := StartProcess(ProcessOptions{
		Name: m.Name, Path: m.etcd.binary, Env: m.environment(), LogFile: m.logFile,
		OnStart: m.showProcess, OnExit: m.hideProcess,
	})
	if err != nil {
		return err
	}
	m.process = process
	return nil
}

// Start starts a member that is down, or was added and never started, and waits until it serves.
func (m *Member) Start(ctx context.Context) error {
	if err := m.Launch(); err != nil {
		return err
	}
	return m.WaitReady(ctx)
}

// Restart stops the member and starts it again.
func (m *Member) Restart(ctx context.Context) error {
	if err := m.Stop(ctx); err != nil {
		return err
	}
	return m.Start(ctx)
}

// WaitReady waits until the member answers: a voter a linearizable read, a learner for its status. It returns early if
// the process ends.
func (m *Member) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := m.Client(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // it always tells that its context has been cancelled
	process := m.current()
	if process == nil {
		return fmt.Errorf("waiting for %s: it has not been started", m.Name)
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for process.Running() {
		asked := m.ask(ctx, client)
		if asked == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-process.Done():
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; the end of its log:\n%s", m.Name, errors.Join(context.Cause(ctx), asked), m.LogTail(10))
		}
	}
	return process.Exited()
}

func (m *Member) ask(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	status, err := client.Status(ctx, m.ClientURL)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.id = status.Header.MemberId
	m.mu.Unlock()
	if status.IsLearner {
		return nil
	}
	_, err = client.Get(ctx, "health")
	return err
}

// ID returns the member's ID; 0 if it was never known.
func (m *Member) ID() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// HexID returns the member's ID as etcdctl prints it.
func (m *Member) HexID() string { return strconv.FormatUint(m.ID(), 16) }

// DataDir returns the data directory as it can be opened.
func (m *Member) DataDir() string { return filepath.Join(m.Root, m.etcd.path(dataDir)) }

// PID returns the ID of the running process, 0 if none runs.
func (m *Member) PID() int {
	if process := m.current(); process != nil && process.Running() {
		return process.PID()
	}
	return 0
}

// Running says that the process runs, paused or not.
func (m *Member) Running() bool { return m.PID() != 0 }

// Done is closed when the process that runs now has ended. It is nil for a member that was never started.
func (m *Member) Done() <-chan struct{} {
	if process := m.current(); process != nil {
		return process.Done()
	}
	return nil
}

// Stop stops the process with SIGTERM.
func (m *Member) Stop(ctx context.Context) error {
	if process := m.current(); process != nil {
		return process.Stop(ctx)
	}
	return nil
}

// Kill ends the process at once, as a machine that is switched off.
func (m *Member) Kill() error { return m.with((*Process).Kill) }

// Pause makes the member hang: its sockets stay open and nothing answers.
func (m *Member) Pause() error { return m.with((*Process).Pause) }

// Resume lets a paused member go on.
func (m *Member) Resume() error { return m.with((*Process).Resume) }

func (m *Member) with(do func(*Process) error) error {
	if process := m.current(); process != nil {
		return do(process)
	}
	return fmt.Errorf("%s was never started", m.Name)
}

// LogTail returns the last lines of the member's log.
func (m *Member) LogTail(lines int) string {
	if process := m.current(); process != nil {
		return process.LogTail(lines)
	}
	return "(never started)"
}

func (m *Member) current() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}
