package spc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// kubelet is a Node of that name and address, an hour old, with or without a kubelet that reports.
func kubelet(name, ip string, alive bool) *corev1.Node {
	n := node(address(corev1.NodeInternalIP, ip))
	n.Name, n.CreationTimestamp = name, metav1.NewTime(noon().Add(-time.Hour))
	status := corev1.ConditionUnknown
	if alive {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func TestWhereEachMachineIsSeen(t *testing.T) {
	record := func(pk int64, instance, ip, state string) spc.Record {
		return spc.Record{PK: pk, InstanceID: instance, PrivateIP: ip, State: state, GroupName: "g", Created: "2026-11-20T10:00:00Z"}
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
	young := kubelet("young", "10.0.0.99", true)
	young.CreationTimestamp = metav1.NewTime(noon().Add(-time.Minute))
	lost := kubelet("lost", "10.0.0.50", true)
	lost.Labels[spc.InstanceIDLabel] = "a"
	census, memory := spc.Take(spc.NewIndex(list), nil, []*corev1.Node{
		kubelet("a", "10.0.0.1", true), kubelet("b", "10.0.0.2", false), kubelet("renamed", "10.0.0.2", false),
		kubelet("g", "10.0.0.7", true), kubelet("stranger", "10.0.0.51", false), young, lost,
	}, nil, noon())
	require.Equal(t, map[spc.Sighting]int{
		{SPC: spc.Up, Cloud: spc.Alive, Kubernetes: spc.Ready}:          1, // a
		{SPC: spc.Up, Cloud: spc.Made, Kubernetes: spc.NotReady}:        1, // b, twice in Kubernetes
		{SPC: spc.Up, Cloud: spc.Made, Kubernetes: spc.Absent}:          1, // c
		{SPC: spc.Starting, Cloud: spc.NotMade, Kubernetes: spc.Absent}: 1, // d
		{SPC: spc.Starting, Cloud: spc.Made, Kubernetes: spc.Absent}:    1, // e
		{SPC: spc.Going, Cloud: spc.Made, Kubernetes: spc.Absent}:       1, // f
		{SPC: spc.Failed, Cloud: spc.Alive, Kubernetes: spc.Ready}:      1, // g
		{SPC: spc.Other, Cloud: spc.Made, Kubernetes: spc.Absent}:       1, // h
		{SPC: spc.NotSeen, Cloud: spc.Made, Kubernetes: spc.NotReady}:   1, // stranger
		{SPC: spc.NotSeen, Cloud: spc.Alive, Kubernetes: spc.Ready}:     2, // young, lost
	}, census.Sightings)
	var late []int64
	for _, l := range census.Late {
		late = append(late, l.Record.PK)
	}
	require.Equal(t, []int64{3, 4, 5, 8}, late, "what is going is not late")
	require.Contains(t, census.Machineless, "stranger")
	require.NotContains(t, census.Machineless, "young")
	require.Contains(t, census.Doubtful["lost"], "its labels name SPC instance a")
	require.Equal(t, map[string][]string{"b": {"b", "renamed"}}, census.Doubled)
	require.Equal(t, map[spc.Phase]int{spc.Up: 3, spc.Starting: 2, spc.Going: 1, spc.Failed: 1, spc.Other: 1}, census.Groups["g"].Phases)
	require.Len(t, memory, 7)
}

func TestHowLongAMachineHasNotBeenANode(t *testing.T) {
	record := spc.Record{PK: 1, InstanceID: "a", PrivateIP: "10.0.0.1", State: "building", Created: "2026-11-20T12:00:00.091286Z"}
	n := kubelet("a", "10.0.0.1", true)
	at := func(minutes int) time.Time { return noon().Add(time.Duration(minutes) * time.Minute) }
	late := func(memory spc.Absences, now time.Time, r spc.Record, nodes ...*corev1.Node) (bool, spc.Absences) {
		census, after := spc.Take(spc.NewIndex(&spc.Inventory{AsOf: now, Records: []spc.Record{r}}), nil, nodes, memory, now)
		return len(census.Late) > 0, after
	}

	is, memory := late(nil, at(15), record)
	require.False(t, is, "not yet a quarter of an hour")
	is, _ = late(memory, at(16), record)
	require.True(t, is)
	is, _ = late(nil, at(16), record)
	require.True(t, is, "nor does a new leader wait again")

	// Its Node goes: it counts from then on.
	_, memory = late(nil, at(60), record, n)
	is, memory = late(memory, at(70), record)
	require.False(t, is)
	is, _ = late(memory, at(75), record)
	require.True(t, is)

	// An API that does not say when, or says something of the future.
	for _, created := range []string{"", "yesterday", "2030-01-01T00:00:00Z"} {
		r := record
		r.Created = created
		is, memory = late(nil, at(0), r)
		require.False(t, is)
		is, _ = late(memory, at(15), r)
		require.True(t, is, created)
	}
	is, memory = late(memory, at(90), spc.Record{PK: 1, State: "deleted"})
	require.False(t, is)
	require.Empty(t, memory, "what has gone is forgotten")
}

func TestCensusOfAMachineWithManyNodes(t *testing.T) {
	x := spc.NewIndex(&spc.Inventory{AsOf: noon(), Records: []spc.Record{worker(nil)}})
	census, _ := spc.Take(x, []spc.Pool{{InstanceID: "p"}, {Autoscaled: true}}, []*corev1.Node{
		kubelet("old", "172.23.1.67", false), kubelet("new", "172.23.1.67", true),
	}, nil, noon())
	require.Equal(t, map[spc.Sighting]int{{SPC: spc.Up, Cloud: spc.Alive, Kubernetes: spc.Ready}: 1}, census.Sightings)
	require.NotContains(t, census.Groups, "autoscaling-p", "not autoscaled")
	require.NotContains(t, census.Groups, "autoscaling-", "a pool without a name has no group")
}
