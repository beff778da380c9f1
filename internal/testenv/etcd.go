package testenv

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"
)

const (
	clientPort, peerPort = 2379, 2380
	// eventsClientPort and eventsPeerPort are those of kubespray's second etcd.
	eventsClientPort, eventsPeerPort = 2383, 2382
	clusterToken                     = "k8s_etcd"
)

// EtcdOptions say what cluster to start. Member numbers i start at 1, as the names etcd1, etcd2, … do.
type EtcdOptions struct {
	// Dir holds the logs, the authority's certificate and whatever has no host root of its own.
	Dir string
	// Members is the number of voters at the start; 0 means 1.
	Members int
	// TLS demands client certificates of clients and peers. Without it all is plain HTTP.
	TLS bool
	// HostRoot is the directory that plays the root of member i's host; nil means <Dir>/hosts/<node>.
	HostRoot func(i int) string
	// Node names the node of member i, which is in the names of its certificates; nil means etcd-<i>.
	Node func(i int) string
	// IP is the address of member i; nil means 127.a.b.<i> on a loopback network of this cluster's own.
	IP func(i int) string
	// BootID is what <root>/proc/sys/kernel/random/boot_id holds; nil means that the file is not written.
	BootID func(i int) string
	// ClientURLs overrides where member i listens for clients and what it advertises; nil means both are its IP, and it
	// listens on the first of them in any case, since the cluster is managed through it.
	ClientURLs func(i int) (listen, advertise []string)
	// Strict leaves etcd's own guard on membership changes on: they are refused until every member has been connected
	// for five seconds. Off, changes need not wait.
	Strict bool
	// Events makes the cluster the second one on its hosts, laid out as kubespray lays out the etcd of events: other ports,
	// and "etcd-events" in the place of "etcd" in all paths.
	Events bool
	// Settings are further ETCD_* variables, of all members. They win over ours.
	Settings map[string]string
}

// Etcd is a cluster of real etcd processes.
type Etcd struct {
	opts   EtcdOptions
	binary string
	net    *Loopback
	pki    *etcdPKI

	mu      sync.Mutex // guards members and seen
	members []*Member
	seen    map[string]string // initial cluster: peer URL by name
}

// StartEtcd starts a cluster and returns when every member answers a linearizable read. Stop it.
func StartEtcd(ctx context.Context, opts EtcdOptions) (*Etcd, error) {
	binary, err := Binary("etcd")
	if err != nil {
		return nil, err
	}
	e := &Etcd{opts: withDefaults(opts), binary: binary, seen: map[string]string{}}
	if e.opts.IP == nil {
		if e.net, err = HoldLoopback(); err != nil {
			return nil, err
		}
		e.opts.IP = e.net.IP
	}
	if e.opts.TLS {
		if e.pki, err = newEtcdPKI(filepath.Join(e.opts.Dir, "pki")); err != nil {
			return nil, errors.Join(err, e.Stop())
		}
	}
	for i := range e.opts.Members {
		m := e.newMember(i + 1)
		e.seen[m.Name] = m.PeerURL
		e.members = append(e.members, m)
	}
	if err := e.startAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting etcd: %w", err), e.Stop())
	}
	return e, nil
}

// StartPlainEtcd starts one member without TLS, tuned for a kube-apiserver of a test: quick, small and forgetful.
func StartPlainEtcd(ctx context.Context, dir string) (*Etcd, error) {
	return StartEtcd(ctx, EtcdOptions{Dir: dir, Settings: map[string]string{
		"ETCD_QUOTA_BACKEND_BYTES": strconv.Itoa(256 << 20),
		"ETCD_SNAPSHOT_COUNT":      "10000",
	}})
}

func withDefaults(opts EtcdOptions) EtcdOptions {
	opts.Members = max(opts.Members, 1)
	if opts.Node == nil {
		opts.Node = func(i int) string { return fmt.Sprintf("etcd-%d", i) }
	}
	if opts.HostRoot == nil {
		dir, node := opts.Dir, opts.Node
		opts.HostRoot = func(i int) string { return filepath.Join(dir, "hosts", node(i)) }
	}
	return opts
}

func (e *Etcd) startAll(ctx context.Context) error {
	for _, m := range e.members {
		if err := m.layOut("new"); err != nil {
			return err
		}
		if err := m.Launch(); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range e.members {
		group.Go(func() error { return m.WaitReady(ctx) })
	}
	return group.Wait()
}

// Members returns all members that were ever started or added, removed and dead ones too.
func (e *Etcd) Members() []*Member {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Member{}, e.members...)
}

// Member returns member i, from 1.
func (e *Etcd) Member(i int) *Member {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.members[i-1]
}

// CA returns the authority of clients and servers, nil without TLS.
func (e *Etcd) CA() *CA {
	if e.pki == nil {
		return nil
	}
	return e.pki.ca
}

// Endpoints returns a client URL of every member whose process runs.
func (e *Etcd) Endpoints() []string {
	var endpoints []string
	for _, m := range e.Members() {
		if m.Running() {
			endpoints = append(endpoints, m.ClientURL)
		}
	}
	return endpoints
}

// Stop ends the cluster and gives the addresses up. The members are killed, since one that is asked to end waits for
// others to take over its leadership, and they are ending too. It can be called more than once.
func (e *Etcd) Stop() error {
	var err error
	for _, m := range e.Members() {
		if m.Running() {
			err = errors.Join(err, m.Kill())
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.net != nil {
		err = errors.Join(err, e.net.Close())
		e.net = nil
	}
	return err
}
