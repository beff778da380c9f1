package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// TestEveryDistributionIsAsked runs the servers of every host of internal/host/testdata/hosts: real etcds that were told
// just what the host shows. Each is found with the ID that etcd itself says it has, and one that was stopped still
// protects the node. On a host that only looks like one nothing is found.
func TestEveryDistributionIsAsked(t *testing.T) {
	t.Parallel()
	layouts, err := testenv.HostLayouts()
	require.NoError(t, err)
	ca, err := testenv.NewCA("etcd-ca")
	require.NoError(t, err)
	for name, layout := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net, err := testenv.HoldLoopback()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, net.Close()) })
			root := t.TempDir()
			parts := testenv.HostParts{
				CA: ca, Hosts: []string{net.IP(1), net.IP(2), "127.0.0.1"},
				// The second address plays loopback: on that of this machine other tests may run a server.
				Addresses: strings.NewReplacer("192.0.2.11", net.IP(1), "0.0.0.0", net.IP(1), "127.0.0.1", net.IP(2), "etcd0.example.com", net.IP(1)),
			}
			require.NoError(t, layout.LayOut(root, parts))
			require.NoError(t, layout.ShowProcesses(root, parts.Addresses))
			var servers []*testenv.Process
			ids := map[string]bool{}
			for _, p := range layout.Processes {
				if p.Serves {
					server, id := serve(t, layout, root, p, parts)
					servers, ids[id] = append(servers, server), true
				}
			}

			seen := found(t, root)
			for range 10 {
				if !seen.silent() {
					break
				}
				seen = found(t, root) // a machine that is busy with other tests
			}
			require.Empty(t, seen.Etcd.Unknown)
			require.Len(t, seen.Etcd.Found, len(layout.Running))
			for i, f := range seen.Etcd.Found {
				require.Empty(t, f.Answer.Problem)
				require.True(t, ids[string(f.Answer.Ref.Member)], "%s is not among %v", f.Answer.Ref.Member, ids)
				delete(ids, string(f.Answer.Ref.Member))
				require.Equal(t, layout.Running[i].Unit, f.Sighting.Unit)
				require.Equal(t, layout.Running[i].InCluster, f.Sighting.InCluster)
			}
			require.Empty(t, ids, "every server is found")
			require.Equal(t, fmt.Sprint(len(layout.Running) > 0), seen.Decision.Protect.HoldsMember)
			if len(layout.Running) > 0 && layout.Running[0].InCluster {
				require.Equal(t, "StaticPod", seen.Decision.Protect.Reason)
				require.Equal(t, "false", found(t, root, "--protect-static-pods=false").Decision.Protect.HoldsMember, "switched off")
			}

			for _, server := range servers {
				require.NoError(t, server.Stop(t.Context()))
			}
			require.NoError(t, layout.HideProcesses(root))
			seen = found(t, root)
			require.Empty(t, seen.Etcd.Unknown)
			require.Len(t, seen.Etcd.Found, len(layout.Stopped))
			require.Equal(t, fmt.Sprint(len(layout.Stopped) > 0), seen.Decision.Protect.HoldsMember)
		})
	}
}

// sightings is what the tests of distributions read of `agent inspect -o json`.
type sightings struct {
	Etcd struct {
		Found []struct {
			Sighting protect.Sighting
			Answer   protect.Answer
		}
		Unknown []string
	}
	Decision struct {
		Protect struct{ HoldsMember, Reason string }
	}
}

// silent says whether a server did not answer.
func (s sightings) silent() bool {
	for _, f := range s.Etcd.Found {
		if f.Answer.Problem != "" {
			return true
		}
	}
	return false
}

func found(t *testing.T, root string, flags ...string) (seen sightings) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(inspected(t, append(flags, "--host-root="+root, "-o=json")...)), &seen))
	return seen
}

// serve starts the etcd of a process and returns the ID that it has by its own log.
func serve(t *testing.T, l testenv.HostLayout, root string, p testenv.HostProcess, parts testenv.HostParts) (server *testenv.Process, id string) {
	t.Helper()
	binary, err := testenv.Binary("etcd")
	require.NoError(t, err)
	args, env, err := l.ServerCommand(root, p, parts.Addresses)
	require.NoError(t, err)
	log := filepath.Join(t.TempDir(), fmt.Sprintf("%d.log", p.PID))
	server, err = testenv.StartProcess(testenv.ProcessOptions{Path: binary, Args: args, Env: env, Dir: t.TempDir(), LogFile: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Kill()) })
	own := regexp.MustCompile(`"local-member-id":"([0-9a-f]+)"`)
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log)
		if match := own.FindSubmatch(text); err == nil && match != nil && strings.Contains(string(text), "ready to serve client requests") {
			id = string(match[1])
		}
		return id != "" || !server.Running()
	}, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, server.Exited())
	return server, id
}
