package nodenet_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/node/nodenet"
	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

const (
	subnetFile = "/run/flannel/subnet.env"
	markerFile = "/run/holdfast/network_plugin.done"
	goodSubnet = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
)

// observe returns the facts about a host with default places.
func observe(t *testing.T, root string, units ...string) readiness.Facts {
	t.Helper()
	return nodenet.Network{Root: hostfs.Root(root), Units: units}.WithDefaults().Facts(t.Context())
}

func TestSubnetFile(t *testing.T) {
	text := func(content string) hosttest.Files { return hosttest.Files{subnetFile: content} }
	present := readiness.Present
	for name, c := range map[string]struct {
		host     hosttest.Files
		presence readiness.Presence
		problem  string
	}{
		"none":          {presence: readiness.Absent},
		"complete":      {host: text(goodSubnet), presence: present},
		"empty":         {host: text(""), presence: present, problem: "half-written"},
		"cut in a line": {host: text("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUB"), presence: present, problem: "missing ="},
		// kubernetes/website#23446: a file made by hand.
		"made by hand, number": {
			host: text(strings.Replace(goodSubnet, "IPMASQ=true", "IPMASQ=1", 1)), presence: present,
			problem: `FLANNEL_IPMASQ is "1"`,
		},
		"made by hand, in one line": {
			host: text(strings.ReplaceAll(goodSubnet, "\n", ";")), presence: present,
			problem: "another program than flannel wrote it",
		},
		"made by hand, no line feed at the end": {
			host: text(strings.TrimSuffix(goodSubnet, "\n")), presence: present,
		},
		"cut in a word": {host: text(strings.TrimSuffix(goodSubnet, "e\n")), presence: present, problem: "half-written"},
	} {
		t.Run(name, func(t *testing.T) {
			got := observe(t, hosttest.New(t, c.host)).Subnet
			require.Equal(t, subnetFile, got.Path)
			require.Equal(t, c.presence, got.Presence)
			if c.problem == "" {
				require.Empty(t, got.Problem)
				return
			}
			require.Contains(t, got.Problem, c.problem)
		})
	}
}

func TestVolatile(t *testing.T) {
	memory, err := os.MkdirTemp("/dev/shm", "holdfast")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(memory)) })
	hosttest.Add(t, memory, hosttest.Files{subnetFile: goodSubnet})
	require.Equal(t, readiness.Present, observe(t, memory).Subnet.Volatile)

	onDisk, err := filepath.Abs("../../../go.mod")
	require.NoError(t, err)
	network := nodenet.Network{Root: "/", SubnetFile: onDisk}.WithDefaults()
	require.Equal(t, readiness.Absent, network.Facts(t.Context()).Subnet.Volatile)
}

func TestPipesDoNotBlock(t *testing.T) {
	root := hosttest.New(t, hosttest.Files{"/run/flannel/a": "", "/etc/cni/net.d/a": "", "/run/holdfast/a": ""})
	for _, pipe := range []string{subnetFile, "/etc/cni/net.d/10.conflist", markerFile} {
		require.NoError(t, syscall.Mkfifo(filepath.Join(root, pipe), 0o644))
	}
	facts := observe(t, root)
	require.Contains(t, facts.Subnet.Problem, "not a regular file")
	require.Contains(t, facts.Conflist.Problem, "not a regular file")
	require.Contains(t, facts.Marker.Problem, "not a regular file")
}

func TestMarker(t *testing.T) {
	marker := func(f hosttest.Files) readiness.Marker { return observe(t, hosttest.New(t, f)).Marker }
	require.Equal(t, readiness.Marker{Path: markerFile, Presence: readiness.Absent}, marker(nil))
	require.Equal(t, readiness.Marker{Path: markerFile, Presence: readiness.Present, BootID: hosttest.BootID},
		marker(hosttest.Files{markerFile: hosttest.BootID + "\n"}))
	unread := marker(hosttest.Files{markerFile: hosttest.Loop})
	require.Equal(t, readiness.Unknown, unread.Presence)
	require.Contains(t, unread.Problem, "too many levels")
}

func TestUnits(t *testing.T) {
	const exited, present = "ExecMainExitTimestampMonotonic", readiness.Present
	root := hosttest.New(t, nil)
	hosttest.StartSystemd(t, root, map[string]map[string]any{
		"done.service": {
			"LoadState": "loaded", "ActiveState": "active", "SubState": "exited", "Result": "success", exited: uint64(91),
		},
		"failed.service": {
			"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "Result": "exit-code", exited: uint64(92),
		},
		"net.target":     {"LoadState": "loaded", "ActiveState": "active", "SubState": "active"},
		"gone.service":   {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", exited: uint64(0)},
		"masked.service": {"LoadState": "masked", "ActiveState": "inactive", "SubState": "dead"},
		"odd.service":    {"LoadState": uint64(7)},
	})
	names := []string{"done.service", "failed.service", "net.target", "gone.service", "masked.service", "odd.service"}
	require.Equal(t, []readiness.Unit{
		{Name: names[0], Presence: present, ActiveState: "active", SubState: "exited", Result: "success", Ran: true},
		{Name: names[1], Presence: present, ActiveState: "failed", SubState: "failed", Result: "exit-code", Ran: true},
		{Name: names[2], Presence: present, ActiveState: "active", SubState: "active"},
		{Name: names[3], Presence: readiness.Absent, ActiveState: "inactive", SubState: "dead"},
		{Name: names[4], Presence: present, ActiveState: "inactive", SubState: "dead", Problem: "its load state is masked"},
		{Name: names[5], Problem: "systemd did not report whether the unit exists"},
	}, observe(t, root, names...).Units)

	unanswered := observe(t, root, "unanswered.service").Units
	require.Len(t, unanswered, 1)
	require.Contains(t, unanswered[0].Problem, "cannot read its state from systemd")
	require.Equal(t, readiness.Unknown, unanswered[0].Presence)
}

func TestUnitsWithoutBus(t *testing.T) {
	root := hosttest.New(t, nil)
	require.Empty(t, observe(t, root).Units)
	names := []string{"a.service", "b.service"}
	units := observe(t, root, names...).Units
	require.Len(t, units, 2)
	for i, name := range names {
		require.Equal(t, name, units[i].Name)
		require.Equal(t, readiness.Unknown, units[i].Presence)
		require.Contains(t, units[i].Problem, "cannot connect to systemd")
		require.NotContains(t, units[i].Problem, root, "paths are the host's")
	}
}
