package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/fakehost"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestDistributions runs a real etcd for each server of each host in
// internal/node/etcddetect/testdata/hosts, with the configuration of the host. The inspection must
// find each server with the ID that etcd itself logs. A stopped server must still protect
// the node. On a host that only looks similar, the inspection must find nothing.
func TestDistributions(t *testing.T) {
	t.Parallel()
	layouts := fakehost.Layouts(t)
	ca, err := pki.NewCA("etcd-ca")
	require.NoError(t, err)
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testDistribution(t, layout, ca)
		})
	}
}

func testDistribution(t *testing.T, layout fakehost.Layout, ca *pki.CA) {
	net, err := loopback.Hold()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, net.Close()) })
	root := t.TempDir()
	parts := fakehost.Parts{
		CA: ca, Hosts: []string{net.IP(1), net.IP(2), "127.0.0.1"},
		// The second address replaces 127.0.0.1, where other tests can run a server.
		Addresses: strings.NewReplacer(
			"192.0.2.11", net.IP(1), "0.0.0.0", net.IP(1), "127.0.0.1", net.IP(2), "etcd0.example.com", net.IP(1)),
	}
	require.NoError(t, os.Mkdir(filepath.Join(root, "etc"), 0o755)) // Some layouts have no file in it.
	layout.LayOut(t, root, parts)
	layout.ShowProcesses(t, root, parts.Addresses)
	binary, err := process.Binary("etcd") // Some layouts have flags that only recent versions know.
	require.NoError(t, err)
	var servers []*process.Process
	ids := map[string]bool{}
	for _, p := range layout.Processes {
		if p.Serves {
			server, id := startServer(t, binary, root, p, parts)
			servers, ids[id] = append(servers, server), true
		}
	}

	members := maps.Clone(ids)
	observed := inspectHost(t, root)
	for range 10 { // Other tests can slow the machine down.
		if observed.haveAllAnswered() {
			break
		}
		observed = inspectHost(t, root)
	}
	require.Empty(t, observed.Etcd.Unknown)
	require.Len(t, observed.Etcd.Found, len(layout.Running))
	for i, f := range observed.Etcd.Found {
		require.Empty(t, f.Answer.Problem)
		require.True(t, ids[string(f.Answer.Ref.Member)], "%s is not among %v", f.Answer.Ref.Member, ids)
		delete(ids, string(f.Answer.Ref.Member))
		require.Equal(t, layout.Running[i].Unit, f.Sighting.Unit)
		require.Equal(t, layout.Running[i].InCluster, f.Sighting.InCluster)
	}
	require.Empty(t, ids, "servers that were not found")
	require.Equal(t, fmt.Sprint(len(layout.Running) > 0), observed.Decision.Protect.HoldsMember)
	if len(layout.Running) > 0 && layout.Running[0].InCluster {
		require.Equal(t, "StaticPod", observed.Decision.Protect.Reason)
		withoutStaticPods := inspectHost(t, root, "--protect-static-pods=false")
		require.Equal(t, "false", withoutStaticPods.Decision.Protect.HoldsMember)
	}

	for _, server := range servers {
		require.NoError(t, server.Stop(t.Context()))
	}
	layout.HideProcesses(t, root)
	observed = inspectHost(t, root)
	require.Empty(t, observed.Etcd.Unknown)
	require.Len(t, observed.Etcd.Found, len(layout.Stopped))
	for _, d := range observed.Etcd.Data {
		require.Contains(t, members, string(d.Ref.Member))
	}
	want := fmt.Sprint(len(layout.Stopped) > 0)
	if len(layout.Stopped) == 0 && len(observed.Etcd.Data) > 0 {
		want = "unknown" // The lists of an EtcdCluster would decide whose data it is.
	}
	require.Equal(t, want, observed.Decision.Protect.HoldsMember)
}

// inspectedHost is the part of the inspection's JSON that these tests read.
type inspectedHost struct {
	Etcd struct {
		Found []struct {
			Sighting    evidence.Server
			Answer      evidence.Identity
			Observation *v1alpha1.Observation
		}
		Data    []evidence.Data
		Unknown []string
	}
	Decision struct {
		Protect struct{ HoldsMember, Reason string }
	}
}

func (h inspectedHost) haveAllAnswered() bool {
	for _, f := range h.Etcd.Found {
		if f.Answer.Problem != "" {
			return false
		}
	}
	return true
}

func inspectHost(t *testing.T, root string, flags ...string) (h inspectedHost) {
	t.Helper()
	output := runInspect(t, append(flags, "--host-root="+root, "-o=json")...)
	require.NoError(t, json.Unmarshal([]byte(output), &h))
	return h
}

// startServer starts the etcd of a process. It returns the member ID from etcd's log.
func startServer(
	t *testing.T, binary, root string, p fakehost.Process, parts fakehost.Parts,
) (server *process.Process, id string) {
	t.Helper()
	args, env := fakehost.ServerCommand(t, root, p, parts.Addresses)
	log := filepath.Join(t.TempDir(), fmt.Sprintf("%d.log", p.PID))
	server, err := process.Start(process.Options{
		Path: binary, Args: args, Env: env, Dir: t.TempDir(), LogFile: log,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Kill()) })
	localID := regexp.MustCompile(`"local-member-id":"([0-9a-f]+)"`)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log)
		match := localID.FindSubmatch(text)
		if err == nil && match != nil && strings.Contains(string(text), "ready to serve client requests") {
			id = string(match[1])
		}
		return id != "" || !server.Running()
	}, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, server.Exited())
	return server, id
}
