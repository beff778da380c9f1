package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const (
	// pollInterval is the interval at which a starting member is probed.
	pollInterval = 50 * time.Millisecond
	// probeTimeout limits one such probe.
	probeTimeout = time.Second
	// readyTimeout limits the start of a member, and a membership change, if the caller sets no
	// earlier deadline.
	readyTimeout = 60 * time.Second
)

// A Member is one etcd server and its host.
type Member struct {
	// Name is the member's name in etcd (etcd1), Node the name of its node (etcd-1).
	Name, Node string
	// Root is the directory that stands for the host's root.
	Root string
	// IP is the member's address. ClientURL and PeerURL are its URLs at that address.
	IP, ClientURL, PeerURL string
	// Files are the TLS files below Root. They are empty without TLS.
	Files MemberFiles

	etcd              *Cluster
	number            int
	listen, advertise []string
	logFile           string

	mu      sync.Mutex // guards the fields below
	version Version
	process *process.Process
	id      uint64
}

func (c *Cluster) newMember(number int) *Member {
	scheme := "http"
	if c.opts.TLS {
		scheme = "https"
	}
	ip, node := c.opts.IP(number), c.opts.Node(number)
	client, peer := c.opts.ports()
	url := func(port int) string { return scheme + "://" + net.JoinHostPort(ip, strconv.Itoa(port)) }
	m := &Member{
		Name: fmt.Sprintf("etcd%d", number), Node: node, Root: c.opts.HostRoot(number), IP: ip,
		ClientURL: url(client), PeerURL: url(peer),
		etcd: c, number: number, version: c.Version(), logFile: filepath.Join(c.opts.Dir, fmt.Sprintf("etcd%d.log", number)),
	}
	m.listen, m.advertise = []string{m.ClientURL}, []string{m.ClientURL}
	if c.opts.ClientURLs != nil {
		m.listen, m.advertise = c.opts.ClientURLs(number)
		m.ClientURL = m.listen[0]
	}
	if c.opts.TLS {
		m.Files = KubesprayFiles(m.Root, c.name(), node)
	}
	return m
}

// Launch starts the process of a stopped member without waiting until it is ready.
func (m *Member) Launch() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil && m.process.Running() {
		return fmt.Errorf("starting %s: it is already running", m.Name)
	}
	if err := os.MkdirAll(m.etcd.opts.Dir, 0o755); err != nil {
		return fmt.Errorf("starting %s: %w", m.Name, err)
	}
	binary, err := m.version.Binary()
	if err != nil {
		return err
	}
	process, err := process.Start(process.Options{
		Name: m.Name, Path: binary, Env: m.environment(m.version), LogFile: m.logFile,
		OnStart: m.showProcess, OnExit: m.hideProcess,
	})
	if err != nil {
		return err
	}
	m.process = process
	return nil
}

// Start starts a stopped or new member and waits until it is ready.
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

// WaitReady waits until a voter serves a linearizable read, or until a learner reports its
// status. It returns early if the process ends.
func (m *Member) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := m.Client(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // always the error of its cancelled context
	process := m.currentProcess()
	if process == nil {
		return fmt.Errorf("waiting for %s: it was never started", m.Name)
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for process.Running() {
		notReady := m.checkReady(ctx, client)
		if notReady == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-process.Done():
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; end of its log:\n%s", m.Name,
				errors.Join(context.Cause(ctx), notReady), m.LogTail(10))
		}
	}
	return process.Exited()
}

func (m *Member) checkReady(ctx context.Context, client *clientv3.Client) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
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

// Version returns the version that the member runs, or will run after its next start.
func (m *Member) Version() Version {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.version
}

// SetVersion sets the version that the member runs after its next start.
func (m *Member) SetVersion(v Version) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version = v
}

// ClusterVersion returns the version on which all members have agreed, as this member reports
// it. The cluster agrees on a later version some seconds after the last member runs it.
func (m *Member) ClusterVersion(ctx context.Context) (Version, error) {
	config, err := m.etcd.ClientTLS()
	if err != nil {
		return "", err
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.ClientURL+"/version", http.NoBody)
	if err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // read-only
	var versions struct{ EtcdCluster string }
	if err := json.NewDecoder(response.Body).Decode(&versions); err != nil {
		return "", fmt.Errorf("reading the cluster version: %w", err)
	}
	return Version("v" + strings.TrimSuffix(versions.EtcdCluster, ".0")), nil
}

// ID returns the member's ID, or 0 if it is not known.
func (m *Member) ID() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

// HexID returns the member's ID as etcdctl prints it.
func (m *Member) HexID() string { return strconv.FormatUint(m.ID(), 16) }

// DataDir returns the path of the data directory, below Root.
func (m *Member) DataDir() string { return filepath.Join(m.Root, m.etcd.path(dataDir)) }

// PID returns the ID of the running process, or 0.
func (m *Member) PID() int {
	if process := m.currentProcess(); process != nil && process.Running() {
		return process.PID()
	}
	return 0
}

// Running reports whether the process runs. A paused process runs.
func (m *Member) Running() bool { return m.PID() != 0 }

// Stop stops the process with SIGTERM.
func (m *Member) Stop(ctx context.Context) error {
	if process := m.currentProcess(); process != nil {
		return process.Stop(ctx)
	}
	return nil
}

// Kill ends the process with SIGKILL, like a machine that loses power.
func (m *Member) Kill() error { return m.withProcess((*process.Process).Kill) }

// Pause makes the member hang: its sockets stay open, but it does not respond.
func (m *Member) Pause() error { return m.withProcess((*process.Process).Pause) }

// Resume continues a paused member.
func (m *Member) Resume() error { return m.withProcess((*process.Process).Resume) }

func (m *Member) withProcess(do func(*process.Process) error) error {
	if process := m.currentProcess(); process != nil {
		return do(process)
	}
	return fmt.Errorf("%s was never started", m.Name)
}

// LogTail returns the last lines of the member's log.
func (m *Member) LogTail(lines int) string {
	if process := m.currentProcess(); process != nil {
		return process.LogTail(lines)
	}
	return "(never started)"
}

func (m *Member) currentProcess() *process.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}
