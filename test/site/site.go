package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

const (
	// Namespace is where Holdfast is installed.
	Namespace = "holdfast-system"
	// Patience is how long anything may take that is not timed: more than a grant must be old to be settled by hand.
	Patience = 2 * time.Minute
	// askEvery is how often Until asks.
	askEvery = 100 * time.Millisecond
)

// Options say where a Site lives and what it runs. All but Name may be left out.
type Options struct {
	// Name is in the names of the directories that are made.
	Name string
	// Out is told where the logs are when something went wrong.
	Out io.Writer
	// Agent and Webhook are the programs; empty means bin/holdfast-agent and bin/holdfast-webhook.
	Agent, Webhook string
}

// Site is everything that runs.
type Site struct {
	// Dir holds it all but the hosts of workers. API and Net are there after Start.
	Dir string
	API *testenv.APIServer
	// Net are the addresses of the nodes.
	Net *testenv.Loopback

	opts     Options
	volatile string
	service  *testenv.ServiceProxy

	mu       sync.Mutex // guards what follows
	etcds    []*testenv.Etcd
	machines map[string]*machine
	webhooks []*Webhook
}

// New makes the directories of a Site. Close it.
func New(opts Options) (*Site, error) {
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	dir, err := os.MkdirTemp("", "holdfast-"+opts.Name+"-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the %s: %w", opts.Name, err)
	}
	// flannel's subnet file proves by lying on a tmpfs that it was written since the boot, as /run is on a real host.
	volatile, err := os.MkdirTemp("/dev/shm", "holdfast-"+opts.Name+"-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a directory on a tmpfs, in the place of /run: %w", err), os.RemoveAll(dir))
	}
	return &Site{Dir: dir, opts: opts, volatile: volatile, machines: map[string]*machine{}}, nil
}

// Start starts a kube-apiserver, with these controllers of kube-controller-manager and no other.
func (s *Site) Start(ctx context.Context, controllers ...string) (err error) {
	if s.Net, err = testenv.HoldLoopback(); err != nil {
		return err
	}
	if s.API, err = testenv.StartAPIServer(ctx, testenv.APIServerOptions{Dir: filepath.Join(s.Dir, "apiserver")}); err != nil {
		return err
	}
	if len(controllers) > 0 {
		_, err = s.API.StartControllers(controllers...)
	}
	return err
}

// StartEtcd starts an etcd cluster with TLS whose members stand at the site's addresses and on the site's machines: member i
// at address i on the machine etcd-i, unless the options say otherwise. It ends with the Site.
func (s *Site) StartEtcd(ctx context.Context, opts testenv.EtcdOptions) (*testenv.Etcd, error) {
	opts.TLS = true
	if opts.Dir == "" {
		opts.Dir = filepath.Join(s.Dir, "etcd")
	}
	if opts.IP == nil {
		opts.IP = s.Net.IP
	}
	if opts.Node == nil {
		opts.Node = func(i int) string { return fmt.Sprintf("etcd-%d", i) }
	}
	node := opts.Node
	opts.HostRoot = func(i int) string { return s.Host(node(i)) }
	opts.BootID = func(i int) string { return s.machine(node(i)).boot() }
	etcd, err := testenv.StartEtcd(ctx, opts)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.etcds = append(s.etcds, etcd)
	return etcd, nil
}

// Install puts Holdfast's manifests on the cluster, as kubectl does, and returns when they are in effect.
func (s *Site) Install(ctx context.Context) error {
	root, err := testenv.RepositoryRoot()
	if err != nil {
		return err
	}
	return s.API.Apply(ctx, filepath.Join(root, "manifests"))
}

// Dead returns an error if an agent or a webhook that should run has ended.
func (s *Site) Dead() error {
	for _, p := range s.processes() {
		if err := p.Exited(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Site) processes() []*testenv.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []*testenv.Process
	for _, w := range s.webhooks {
		if p := w.current(); p != nil {
			found = append(found, p)
		}
	}
	for _, m := range s.machines {
		if m.agent != nil {
			found = append(found, m.agent)
		}
	}
	return found
}

// Until asks every 100 ms until the answer is nil. It gives up after a minute, or when something that should run has
// ended, and then says what it waited for and what the last answer was.
func (s *Site) Until(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		last := ask(ctx)
		if last == nil {
			return nil
		}
		if err := s.Dead(); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; at last: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// Close stops everything, last started first. The logs stay if something went wrong.
func (s *Site) Close(ctx context.Context, well bool) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	var err error
	for _, p := range s.processes() {
		err = errors.Join(err, p.Stop(ctx))
	}
	if s.service != nil {
		err = errors.Join(err, s.service.Close())
	}
	for _, w := range s.Webhooks() {
		err = errors.Join(err, w.port.Release())
	}
	s.mu.Lock()
	etcds := slices.Clone(s.etcds)
	s.mu.Unlock()
	for _, e := range slices.Backward(etcds) {
		err = errors.Join(err, e.Stop())
	}
	if s.API != nil {
		err = errors.Join(err, s.API.Stop(ctx))
	}
	if s.Net != nil {
		err = errors.Join(err, s.Net.Close())
	}
	err = errors.Join(err, os.RemoveAll(s.volatile))
	if well && err == nil {
		return os.RemoveAll(s.Dir)
	}
	fmt.Fprintf(s.opts.Out, "\n   the logs are in %s\n", s.Dir)
	return err
}
