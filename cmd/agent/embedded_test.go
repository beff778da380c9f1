//go:build etcdversions

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// A distributionCluster has three hosts of the same layout. Each is 192.0.2.11 in the layout, and
// its 127.0.0.1 is an address of its own.
type distributionCluster struct {
	layout fakehost.Layout
	ca     *pki.CA
	net    *loopback.Network
}

// distributionHost is one host of a distributionCluster, with its server.
type distributionHost struct {
	root   string
	server *process.Process
	id     v1alpha1.MemberID
}

func newDistributionCluster(t *testing.T, layout string) distributionCluster {
	t.Helper()
	layouts := fakehost.Layouts(t)
	c := distributionCluster{layout: layouts[layout]}
	var err error
	c.ca, err = pki.NewCA("etcd-ca")
	require.NoError(t, err)
	c.net, err = loopback.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.net.Close()) })
	return c
}

// loopbackIP returns the address that stands for 127.0.0.1 on host i.
func (c distributionCluster) loopbackIP(i int) string { return c.net.IP(10 + i) }

// start lays out host i and starts its server. The replacements precede those of addresses.
func (c distributionCluster) start(t *testing.T, i int, binary string, replacements ...string) distributionHost {
	t.Helper()
	h := distributionHost{root: t.TempDir()}
	hosts := []string{"localhost", "127.0.0.1"}
	for n := range 3 {
		hosts = append(hosts, c.net.IP(n+1), c.loopbackIP(n+1))
	}
	parts := fakehost.Parts{CA: c.ca, Hosts: hosts, Addresses: strings.NewReplacer(
		append(replacements, "192.0.2.11", c.net.IP(i), "127.0.0.1", c.loopbackIP(i))...)}
	c.layout.LayOut(t, h.root, parts)
	c.layout.ShowProcesses(t, h.root, parts.Addresses)
	for _, p := range c.layout.Processes {
		if p.Serves {
			var id string
			h.server, id = startServer(t, binary, h.root, p, parts)
			h.id = v1alpha1.MemberID(id)
		}
	}
	return h
}

// client returns an administrator's client of the server on host i.
func (c distributionCluster) client(t *testing.T, i int) *clientv3.Client {
	t.Helper()
	pair, err := c.ca.Issue(pki.CertOptions{CommonName: "admin", Client: true})
	require.NoError(t, err)
	certificate, err := pair.TLS()
	require.NoError(t, err)
	client, err := clientv3.New(clientv3.Config{
		Context: t.Context(), Endpoints: []string{"https://" + c.loopbackIP(i) + ":2379"},
		Logger: zap.NewNop(), TLS: &tls.Config{
			RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// addMember adds a member as soon as etcd permits it: its members must have been connected for five
// seconds.
func addMember(
	t *testing.T, add func(context.Context, []string) (*clientv3.MemberAddResponse, error), peer string,
) (added *clientv3.MemberAddResponse) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		added, err = add(t.Context(), []string{peer})
		require.NoError(c, err)
	}, time.Minute, 100*time.Millisecond)
	return added
}

// requireHealth inspects a host until its agent would report these members as healthy, by ID.
func requireHealth(t *testing.T, h distributionHost, want map[v1alpha1.MemberID]bool) inspectedHost {
	t.Helper()
	var got inspectedHost
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got = inspectHost(t, h.root)
		require.Empty(c, got.Etcd.Unknown)
		require.Len(c, got.Etcd.Found, 1)
		found := got.Etcd.Found[0]
		require.Empty(c, found.Answer.Problem)
		require.Equal(c, h.id, found.Answer.Ref.Member)
		require.NotNil(c, found.Observation)
		health := map[v1alpha1.MemberID]bool{}
		for _, m := range found.Observation.Members {
			health[m.ID] = m.Healthy
		}
		require.Equal(c, want, health)
	}, time.Minute, 200*time.Millisecond)
	require.Equal(t, "true", got.Decision.Protect.HoldsMember)
	return got
}

// TestEmbeddedCluster runs etcd inside another process, with the settings of k3s. Members join as
// learners. A server whose member is removed keeps running, and leaves a tombstone.
func TestEmbeddedCluster(t *testing.T) {
	binary, err := process.Binary("etcd-embedded/etcd")
	require.NoError(t, err)
	c := newDistributionCluster(t, "k3s")
	const layoutName = "node1-1b2c3d4e"
	hosts := []distributionHost{c.start(t, 1, binary)}
	health := map[v1alpha1.MemberID]bool{hosts[0].id: true}
	requireHealth(t, hosts[0], health)
	client := c.client(t, 1)
	members := layoutName + "=https://" + c.net.IP(1) + ":2380"
	for i := 2; i <= 3; i++ {
		peer, name := "https://"+c.net.IP(i)+":2380", fmt.Sprintf("node%d-1b2c3d4e", i)
		added := addMember(t, client.MemberAddAsLearner, peer)
		members += "," + name + "=" + peer
		h := c.start(t, i, binary, layoutName+"=https://192.0.2.11:2380", members,
			layoutName, name, "initial-cluster-state: new", "initial-cluster-state: existing")
		require.Equal(t, fmt.Sprintf("%x", added.Member.ID), string(h.id))
		health[h.id] = true
		requireLearner(t, h)
		requireHealth(t, hosts[0], health) // a voter reads from the learner
		require.EventuallyWithT(t, func(collect *assert.CollectT) {
			_, err := client.MemberPromote(t.Context(), added.Member.ID)
			require.NoError(collect, err)
		}, 30*time.Second, 100*time.Millisecond)
		hosts = append(hosts, h)
		for _, h := range hosts {
			got := requireHealth(t, h, health)
			require.True(t, got.Etcd.Found[0].Observation.Linearizable)
			require.False(t, got.Etcd.Found[0].Answer.Learner)
		}
	}

	last := hosts[2]
	tombstone := filepath.Join(last.root, "var/lib/rancher/k3s/server/db/etcd/tombstone")
	var id uint64
	_, err = fmt.Sscanf(string(last.id), "%x", &id)
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // see addMember
		_, err := client.MemberRemove(t.Context(), id)
		require.NoError(c, err)
	}, time.Minute, 100*time.Millisecond)
	isThere := func() bool { _, err := os.Stat(tombstone); return err == nil }
	require.Eventually(t, isThere, time.Minute, 50*time.Millisecond)
	require.True(t, last.server.Running())
	delete(health, last.id)
	requireHealth(t, hosts[0], health)
	got := inspectHost(t, last.root)
	require.Len(t, got.Etcd.Found, 1)
	require.NotEmpty(t, got.Etcd.Found[0].Answer.Problem, "the server is closed")
	require.False(t, got.Etcd.Found[0].Answer.Removed, "a running process may join again")
	require.Equal(t, "true", got.Decision.Protect.HoldsMember)
}

// requireLearner inspects a host until its server answers as a learner. A learner returns no member
// list, so its agent reports none.
func requireLearner(t *testing.T, h distributionHost) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := inspectHost(t, h.root)
		require.Len(c, got.Etcd.Found, 1)
		found := got.Etcd.Found[0]
		require.Equal(c, h.id, found.Answer.Ref.Member)
		require.True(c, found.Answer.Learner)
		require.False(c, found.Observation.Linearizable)
	}, time.Minute, 200*time.Millisecond)
}

// TestLoopbackCluster runs etcd with the settings of k0s. Every member listens for clients on
// loopback only and advertises the same URL, so each agent proves its own member and no other.
func TestLoopbackCluster(t *testing.T) {
	binary, err := process.Binary("etcd")
	require.NoError(t, err)
	c := newDistributionCluster(t, "k0s")
	const advertise = "--advertise-client-urls=https://127.0.0.1:2379"
	members := "node1=https://" + c.net.IP(1) + ":2380"
	hosts := []distributionHost{c.start(t, 1, binary, advertise, advertise)}
	client := c.client(t, 1)
	for i := 2; i <= 3; i++ {
		name, peer := fmt.Sprintf("node%d", i), "https://"+c.net.IP(i)+":2380"
		addMember(t, client.MemberAdd, peer)
		members += "," + name + "=" + peer
		hosts = append(hosts, c.start(t, i, binary, advertise, advertise, "--name=node1", "--name="+name,
			"--initial-cluster=node1=https://192.0.2.11:2380", "--initial-cluster-state=existing --initial-cluster="+members))
	}
	for i, h := range hosts {
		health := map[v1alpha1.MemberID]bool{}
		for _, other := range hosts {
			health[other.id] = other.id == h.id
		}
		got := requireHealth(t, h, health)
		require.True(t, got.Etcd.Found[0].Observation.Linearizable)
		require.Equal(t, fmt.Sprintf("node%d", i+1), got.Etcd.Found[0].Answer.Name)
	}
}
