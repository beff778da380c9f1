package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// inspected runs `holdfast-agent inspect` and returns what it prints.
func inspected(t *testing.T, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	require.Zero(t, command(t.Context(), append([]string{"inspect"}, args...), &out, &errOut), errOut.String())
	require.Empty(t, errOut.String())
	return out.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
}

func TestInspectBesideARunningMember(t *testing.T) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true, BootID: func(int) string { return "boot-1" }})
	member := etcd.Member(1)
	write(t, filepath.Join(member.Root, "etc/cni/net.d/10-flannel.conflist"), `{"name":"cbr0","plugins":[{"type":"flannel"}]}`)
	require.NoError(t, etcd.Member(3).Kill())

	var seen struct {
		Host struct{ BootID string }
		Etcd struct {
			Found []struct {
				Sighting    protect.Sighting
				Answer      protect.Answer
				Observation struct {
					Linearizable bool
					Members      []struct {
						ID      string
						Healthy bool
					}
				}
			}
			Unknown []string
		}
		Network struct {
			Conflist struct {
				Presence string
				Plugins  []struct{ Type, Executable string }
			}
		}
		Decision struct {
			Protect struct {
				HoldsMember, Reason string
				Labels              map[string]string
			}
			Deletion []struct {
				Allowed                          bool
				Voters, HealthyElsewhere, Quorum int
			}
			Hold struct {
				Release bool
				Reason  string
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(inspected(t, "--host-root="+member.Root, "-o=json")), &seen))
	require.Equal(t, "boot-1", seen.Host.BootID)
	require.Empty(t, seen.Etcd.Unknown)
	require.Len(t, seen.Etcd.Found, 1)
	found := seen.Etcd.Found[0]
	require.Equal(t, protect.SystemdUnit, found.Sighting.Source)
	require.Equal(t, member.PID(), found.Sighting.PID)
	require.Equal(t, member.HexID(), string(found.Answer.Ref.Member))
	require.True(t, found.Observation.Linearizable)
	require.Len(t, found.Observation.Members, 3)
	for _, m := range found.Observation.Members {
		require.Equal(t, m.ID != etcd.Member(3).HexID(), m.Healthy, m.ID)
	}
	require.Equal(t, "true", seen.Decision.Protect.HoldsMember)
	require.Equal(t, "SystemdUnit", seen.Decision.Protect.Reason)
	require.Equal(t, map[string]string{protect.EtcdMemberLabel: "true"}, seen.Decision.Protect.Labels)
	require.Len(t, seen.Decision.Deletion, 1)
	require.False(t, seen.Decision.Deletion[0].Allowed, "one is dead already")
	require.Equal(t, 3, seen.Decision.Deletion[0].Voters)
	require.Equal(t, 1, seen.Decision.Deletion[0].HealthyElsewhere)
	require.Equal(t, 2, seen.Decision.Deletion[0].Quorum)
	require.Equal(t, "present", seen.Network.Conflist.Presence)
	require.Equal(t, "absent", seen.Network.Conflist.Plugins[0].Executable)
	require.False(t, seen.Decision.Hold.Release)
	require.Equal(t, "WaitingForCNI", seen.Decision.Hold.Reason)

	text := inspected(t, "--host-root="+member.Root)
	for _, line := range []string{
		"  found              systemd unit etcd.service, process ",
		"    name             etcd1\n",
		"    answers          as member etcd1 (" + member.HexID() + ") of cluster " + string(found.Answer.Ref.Cluster) + "\n",
		"not proven healthy: ",
		"  protect the node   yes: etcd member etcd1",
		"    annotation       cluster-autoscaler.kubernetes.io/scale-down-disabled=true\n",
		"  its deletion       refused (QuorumWouldBeLost), as this host alone sees it: ",
		"  if it is held      would stay held: waiting for CNI plugins",
		"    gate flannel     closed, waiting for flannel's subnet file /run/flannel/subnet.env\n",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "break-glass", "nobody was refused")

	require.Contains(t, inspected(t, "--host-root="+member.Root, "--ask-etcd=false"), "it was not asked")

	require.NoError(t, os.Remove(filepath.Join(member.Root, "proc", strconv.Itoa(member.PID()))))
	text = inspected(t, "--host-root="+member.Root)
	require.Contains(t, text, "  found              data directory /var/lib/etcd of systemd unit etcd.service, which does not run\n")
	require.Contains(t, text, "    answers          as member etcd1 (", "whose process is not seen is asked all the same, as the agent does")
}

func TestInspectAHostWithoutEtcd(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "proc/sys/kernel/random/boot_id"), "boot-1\n")
	write(t, filepath.Join(root, "etc/cni/net.d/1.conflist"), `{"name":"x","plugins":[{"type":"ptp"}]}`)
	write(t, filepath.Join(root, "opt/cni/bin/ptp"), "#!/bin/sh\n")
	text := inspected(t, "--host-root="+root)
	require.Contains(t, text, "  found              none\n")
	require.Contains(t, text, "  protect the node   no: no etcd member is on this node\n")
	require.Contains(t, text, "  if it is held      would be released: ")
	require.NotContains(t, text, "its deletion")
	require.NotContains(t, text, "annotation")
}

func TestInspectAsksForTheMarkerOfTheLabel(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "proc/sys/kernel/random/boot_id"), "boot-1\n")
	write(t, filepath.Join(root, "etc/cni/net.d/1.conflist"), `{"name":"x","plugins":[{"type":"ptp"}]}`)
	write(t, filepath.Join(root, "opt/cni/bin/ptp"), "#!/bin/sh\n")
	for _, label := range []string{"built-by=ansible", "built-by"} {
		text := inspected(t, "--host-root="+root, "--network-plugin-label="+label)
		require.Contains(t, text, "  if it is held      would stay held: ")
		require.Contains(t, text, "/run/holdfast/network_plugin.done")
	}
}

func TestInspectSaysWhatItCouldNotSee(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Symlink("proc", filepath.Join(root, "proc")))
	text := inspected(t, "--host-root="+root)
	require.Contains(t, text, "  boot               unknown")
	require.Contains(t, text, "  unknown            the process table")
	require.Contains(t, text, "  protect the node   nothing changes, for it is unknown: ")
	require.Contains(t, text, "  if it is held      would stay held: ")
}

func TestInspectRefusesMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":   {[]string{"--nod"}, "-nod"},
		"flag of run":    {[]string{"--node=a"}, "-node"},
		"output":         {[]string{"-o=yaml"}, "choose text or json"},
		"word":           {[]string{"all"}, "is not a flag"},
		"root":           {[]string{"--host-root=/does/not/exist"}, "--host-root"},
		"relative":       {[]string{"--cni-conf-dir=etc"}, "not an absolute path"},
		"gate":           {[]string{"--gates=moon"}, "moon"},
		"one of three":   {[]string{"--etcd-ca=/a"}, "go together"},
		"probe too long": {[]string{"--probe-timeout=1m"}, "--probe-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			require.Equal(t, 2, command(t.Context(), append([]string{"inspect"}, c.args...), &out, &errOut))
			require.Contains(t, errOut.String(), c.want)
			require.Empty(t, out.String())
		})
	}
}

func TestInspectExplainsItsFlags(t *testing.T) {
	help := inspected(t, "--help")
	inspectFlags(&inspection{}).VisitAll(func(f *flag.Flag) {
		if len(f.Name) > 1 {
			require.Contains(t, help, "--"+f.Name)
			return
		}
		require.Contains(t, help, "-"+f.Name+" ")
	})
}

func TestInspectReportsAPrinterThatFails(t *testing.T) {
	read, write := io.Pipe()
	require.NoError(t, read.Close())
	for _, output := range []string{"text", "json"} {
		require.ErrorContains(t, inspect(t.Context(), []string{"-o", output, "--host-root=" + t.TempDir()}, write, io.Discard), "printing the report")
	}
}
