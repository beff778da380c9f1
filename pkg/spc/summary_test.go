package spc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func TestSummarize(t *testing.T) {
	record := func(pk int64, instance, ip, state string) spc.Record {
		return spc.Record{
			PK: pk, InstanceID: instance, PrivateIP: ip, State: state, GroupName: "g", Created: "2026-11-20T10:00:00Z",
		}
	}
	list := &spc.Inventory{AsOf: noon(), Records: []spc.Record{
		record(1, "a", "10.0.0.1", "running"),
		record(2, "b", "10.0.0.2", "running"),
		record(3, "c", "10.0.0.3", "running"),
		record(4, "d", "", "draft"),
		record(5, "e", "10.0.0.5", "building"),
		record(6, "f", "10.0.0.6", "deleting"),
		record(7, "g", "10.0.0.7", "failed"),
		record(8, "h", "10.0.0.8", "hibernating"),
	}}
	young := registeredNode("young", "10.0.0.99", true)
	young.CreationTimestamp = metav1.NewTime(noon().Add(-time.Minute))
	lost := registeredNode("lost", "10.0.0.50", true)
	lost.Labels[spc.InstanceIDLabel] = "a"
	pools := []spc.Pool{{InstanceID: "p"}, {Autoscaled: true}}
	summary, absences := spc.Summarize(spc.NewIndex(list), pools, []*corev1.Node{
		registeredNode("a", "10.0.0.1", true), registeredNode("b", "10.0.0.2", false),
		registeredNode("renamed", "10.0.0.2", false),
		registeredNode("old", "10.0.0.7", false), registeredNode("g", "10.0.0.7", true),
		registeredNode("unlisted", "10.0.0.51", false), young, lost,
	}, nil, noon())
	require.Equal(t, map[spc.MachineState]int{
		{SPC: spc.Up, Cloud: spc.CloudAlive, Kubernetes: spc.NodeReady}:          1, // a
		{SPC: spc.Up, Cloud: spc.CloudMade, Kubernetes: spc.NodeNotReady}:        1, // b and renamed
		{SPC: spc.Up, Cloud: spc.CloudMade, Kubernetes: spc.NodeAbsent}:          1, // c
		{SPC: spc.Starting, Cloud: spc.CloudNone, Kubernetes: spc.NodeAbsent}:    1, // d
		{SPC: spc.Starting, Cloud: spc.CloudMade, Kubernetes: spc.NodeAbsent}:    1, // e
		{SPC: spc.Going, Cloud: spc.CloudMade, Kubernetes: spc.NodeAbsent}:       1, // f
		{SPC: spc.Failed, Cloud: spc.CloudAlive, Kubernetes: spc.NodeReady}:      1, // g and old
		{SPC: spc.Other, Cloud: spc.CloudMade, Kubernetes: spc.NodeAbsent}:       1, // h
		{SPC: spc.NotListed, Cloud: spc.CloudMade, Kubernetes: spc.NodeNotReady}: 1, // unlisted
		{SPC: spc.NotListed, Cloud: spc.CloudAlive, Kubernetes: spc.NodeReady}:   2, // young, lost
	}, summary.Machines)
	var withoutNode []int64
	for _, m := range summary.MachinesWithoutNode {
		withoutNode = append(withoutNode, m.Record.PK)
	}
	require.Equal(t, []int64{3, 4, 5, 8}, withoutNode, "a machine that is being deleted is not expected to become a Node")
	require.Contains(t, summary.NodesWithoutMachine, "unlisted")
	require.NotContains(t, summary.NodesWithoutMachine, "young")
	require.Contains(t, summary.NodesInConflict["lost"], "its labels name SPC instance a")
	require.Equal(t, map[string][]string{"b": {"b", "renamed"}, "g": {"old", "g"}}, summary.MachinesWithSeveralNodes)
	require.Equal(t, map[spc.Phase]int{spc.Up: 3, spc.Starting: 2, spc.Going: 1, spc.Failed: 1, spc.Other: 1},
		summary.Groups["g"].Phases)
	require.NotContains(t, summary.Groups, "autoscaling-p", "the pool is not autoscaled")
	require.NotContains(t, summary.Groups, "autoscaling-", "a pool without an instance ID has no group")
	require.Len(t, absences, 7)
}

func TestMachineWithoutNodeSince(t *testing.T) {
	record := spc.Record{
		PK: 1, InstanceID: "a", PrivateIP: "10.0.0.1", State: "building", Created: "2026-11-20T12:00:00.091286Z",
	}
	n := registeredNode("a", "10.0.0.1", true)
	at := func(minutes int) time.Time { return noon().Add(time.Duration(minutes) * time.Minute) }
	hasNoNode := func(before spc.Absences, now time.Time, r spc.Record, nodes ...*corev1.Node) (bool, spc.Absences) {
		x := spc.NewIndex(&spc.Inventory{AsOf: now, Records: []spc.Record{r}})
		summary, after := spc.Summarize(x, nil, nodes, before, now)
		return len(summary.MachinesWithoutNode) > 0, after
	}

	is, absences := hasNoNode(nil, at(15), record)
	require.False(t, is, "15 minutes have not passed yet")
	is, _ = hasNoNode(absences, at(16), record)
	require.True(t, is)
	is, _ = hasNoNode(nil, at(16), record)
	require.True(t, is, "a new leader does not wait again")

	// When the Node is deleted, the time starts again.
	_, absences = hasNoNode(nil, at(60), record, n)
	is, absences = hasNoNode(absences, at(70), record)
	require.False(t, is)
	is, _ = hasNoNode(absences, at(75), record)
	require.True(t, is)

	// The API returns no creation time, or one in the future.
	for _, created := range []string{"", "yesterday", "2030-01-01T00:00:00Z"} {
		r := record
		r.Created = created
		is, absences = hasNoNode(nil, at(0), r)
		require.False(t, is)
		is, _ = hasNoNode(absences, at(15), r)
		require.True(t, is, created)
	}
	is, absences = hasNoNode(absences, at(90), spc.Record{PK: 1, State: "deleted"})
	require.False(t, is)
	require.Empty(t, absences, "a deleted machine is not remembered")
}
