// Package etcd starts clusters of real etcd processes for tests, benchmarks and the demo. Each
// member has its own host: a directory with kubespray's layout. The processes die with the
// process that started them.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const (
	clientPort, peerPort = 2379, 2380
	// eventsClientPort and eventsPeerPort are the ports of kubespray's second etcd.
	eventsClientPort, eventsPeerPort = 2383, 2382
	clusterToken                     = "k8s_etcd"
)

// Options configure a Cluster. Member numbers i start at 1, as in the names etcd1 and etcd2.
type Options struct {
	// Dir holds the logs, the CA certificate and the hosts that have no HostRoot.
	Dir string
	// Members is the number of initial voters, by default 1.
	Members int
	// TLS requires certificates from clients and peers. Without it, all connections use plain
	// HTTP.
	TLS bool
	// HostRoot returns the root directory of member i's host, by default <Dir>/hosts/<node>.
	HostRoot func(i int) string
	// Node returns the name of member i's node, which is part of the names of its certificates.
	// By default it is etcd-<i>.
	Node func(i int) string
	// IP returns the address of member i, by default 127.a.b.<i> on the cluster's own loopback
	// network.
	IP func(i int) string
	// BootID returns the content of <root>/proc/sys/kernel/random/boot_id. If it is nil, the
	// file is not written.
	BootID func(i int) string
	// ClientURLs overrides the client URLs that member i listens on and advertises, by default
	// its IP. The member must listen on the first one, which Cluster uses as a client.
	ClientURLs func(i int) (listen, advertise []string)
	// Strict keeps etcd's own check of membership changes, which rejects a change until every
	// member has been connected for five seconds.
	Strict bool
	// Events makes the cluster the second one on its hosts, with kubespray's layout of the etcd
	// for events: other ports, and "etcd-events" instead of "etcd" in all paths.
	Events bool
	// Settings are additional ETCD_* variables of all members. They override the defaults.
	Settings map[string]string
	// Version is the version of all members, by default SelectedVersion.
	Version Version
}

// A Cluster is a cluster of real etcd processes.
type Cluster struct {
	opts  Options
	net   *loopback.Network
	ca    *pki.CA
	admin pki.Pair

	mu             sync.Mutex // guards the fields below
	version        Version    // of new members
	members        []*Member
	initialMembers map[string]string // peer URL by name
}

// A Version is a minor version of etcd, whose server the Makefile builds.
type Version string

// The versions that are tested, each with its module in tools/.
const (
	V34 Version = "v3.4"
	V35 Version = "v3.5"
	V36 Version = "v3.6"
	V37 Version = "v3.7"
)

// defaultVersion is the version of bin/etcd, which every kube-apiserver of a test uses.
const defaultVersion = V37

// VersionVariable names the environment variable with the version of clusters whose Options do
// not have one. `make test ETCD=v3.5` sets it.
const VersionVariable = "HOLDFAST_ETCD"

// Start starts a cluster and returns when every member serves a linearizable read. The caller
// stops it.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	version, err := opts.Version, error(nil)
	if version == "" {
		version, err = SelectedVersion()
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: withDefaults(opts), version: version, initialMembers: map[string]string{}}
	if c.opts.IP == nil {
		if c.net, err = loopback.Hold(); err != nil {
			return nil, err
		}
		c.opts.IP = c.net.IP
	}
	if c.opts.TLS {
		if err := c.createCA(); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	for i := range c.opts.Members {
		m := c.newMember(i + 1)
		c.initialMembers[m.Name] = m.PeerURL
		c.members = append(c.members, m)
	}
	if err := c.startAll(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting etcd: %w", err), c.Stop())
	}
	return c, nil
}

// StartPlain starts one member without TLS for the kube-apiserver of a test: quick and small,
// without durability.
func StartPlain(ctx context.Context, dir string) (*Cluster, error) {
	return Start(ctx, Options{Dir: dir, Version: defaultVersion, Settings: map[string]string{
		"ETCD_QUOTA_BACKEND_BYTES": strconv.Itoa(1 << 30),
		"ETCD_SNAPSHOT_COUNT":      "10000",
	}})
}

func withDefaults(opts Options) Options {
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

// SelectedVersion returns the version in VersionVariable, by default v3.7.
func SelectedVersion() (Version, error) {
	v := cmp.Or(Version(os.Getenv(VersionVariable)), defaultVersion)
	if known := []Version{V34, V35, V36, V37}; !slices.Contains(known, v) {
		return "", fmt.Errorf("%s is %q, want one of %v", VersionVariable, v, known)
	}
	return v, nil
}

// Binary returns the path of the server. Its base name is etcd, because that is how a server is
// found on a host.
func (v Version) Binary() (string, error) {
	if v == defaultVersion {
		return process.Binary("etcd")
	}
	name := filepath.Join("etcd-"+string(v), "etcd")
	path, err := process.Binary(name)
	if err != nil {
		return "", fmt.Errorf("finding etcd %s: there is no bin/%s; run \"make bin/%s\"", v, name, name)
	}
	return path, nil
}

// Adjust changes the variables of a member to those that the version understands.
func (v Version) Adjust(s map[string]string) {
	if v != V34 {
		return
	}
	// Without fsync, 3.4 does not flush the entries to the file either (wal/wal.go, sync). A
	// member that is killed then forgets what it acknowledged.
	delete(s, "ETCD_UNSAFE_NO_FSYNC")
	s["ETCD_LOGGER"] = "zap" // the default of later versions
}

// createCA creates the one authority that signs all certificates, as in kubespray, and the
// administrator's certificate.
func (c *Cluster) createCA() (err error) {
	if c.ca, err = pki.NewCA("etcd-ca"); err != nil {
		return err
	}
	if c.admin, err = c.ca.Issue(pki.CertOptions{CommonName: "etcd-admin", Client: true}); err != nil {
		return err
	}
	return c.ca.Write(filepath.Join(c.opts.Dir, "pki", "ca.pem"))
}

func (c *Cluster) startAll(ctx context.Context) error {
	for _, m := range c.members {
		if err := m.layOut("new"); err != nil {
			return err
		}
		if err := m.Launch(); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range c.members {
		group.Go(func() error { return m.WaitReady(ctx) })
	}
	return group.Wait()
}

// Members returns all members that were ever started or added, including removed and dead ones.
func (c *Cluster) Members() []*Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Member{}, c.members...)
}

// Member returns member i, starting at 1.
func (c *Cluster) Member(i int) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.members[i-1]
}

// Version returns the version of members that are added.
func (c *Cluster) Version() Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// SetVersion sets the version of members that are added from now on.
func (c *Cluster) SetVersion(v Version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = v
}

// CA returns the authority of clients and servers, or nil without TLS.
func (c *Cluster) CA() *pki.CA { return c.ca }

// Endpoints returns one client URL for each member whose process runs.
func (c *Cluster) Endpoints() []string {
	var endpoints []string
	for _, m := range c.Members() {
		if m.Running() {
			endpoints = append(endpoints, m.ClientURL)
		}
	}
	return endpoints
}

// Stop stops the cluster and releases its addresses. It kills the members, because a member
// that receives SIGTERM waits until another member takes over leadership, and all of them are
// stopping. It can be called more than once.
func (c *Cluster) Stop() error {
	var err error
	for _, m := range c.Members() {
		if m.Running() {
			err = errors.Join(err, m.Kill())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		err = errors.Join(err, c.net.Close())
		c.net = nil
	}
	return err
}

// startTimeout limits the start of a cluster in a test. It takes a second or two on an idle
// machine.
const startTimeout = 60 * time.Second

// New starts an etcd cluster for a test and stops it when the test ends. By default it uses a
// directory of the test. If the test fails, its output contains the end of the members' logs.
func New(t testing.TB, opts Options) *Cluster {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	etcd, err := Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, member := range etcd.Members() {
				t.Logf("end of the log of %s:\n%s", member.Name, member.LogTail(15))
			}
		}
		require.NoError(t, etcd.Stop())
	})
	return etcd
}
