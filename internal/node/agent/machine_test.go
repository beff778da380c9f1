package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// withMachine returns the inputs of a node whose machine has this state in the inventory.
func withMachine(state string) nodeInputs {
	const name = "born"
	n := bornHeld(name)
	n.UID = "uid-1"
	return nodeInputs{
		node: n, facts: openNetwork(), hasSPC: true, withholdGroup: true,
		now: time.Now(), known: presence.Inputs{ClustersKnown: true},
		inventory: spc.NewIndex(&spc.Inventory{
			Records: []spc.Record{{PK: 1, Cluster: 2, InstanceID: name, GroupName: "g", State: state}},
		}),
	}
}

// mustDecide returns the decision, and the Node after its write.
func mustDecide(t *testing.T, in nodeInputs) (nodeDecision, *corev1.Node) {
	t.Helper()
	d, err := decide(in)
	require.NoError(t, err)
	return d, written(in.node, d.all)
}

func TestWithholdGroup(t *testing.T) {
	etcd, none := &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}, &evidence.Scan{}
	unread := &evidence.Scan{Unknown: []string{"the process table"}}
	const unknown = "it is not known whether the node holds etcd"
	for name, c := range map[string]struct {
		change  func(*nodeInputs)
		group   bool
		message string
	}{
		"not scanned":         {func(*nodeInputs) {}, false, unknown},
		"unreadable place":    {func(in *nodeInputs) { in.evidence = unread }, false, unknown},
		"etcd":                {func(in *nodeInputs) { in.evidence = etcd }, false, "the node holds etcd"},
		"etcd, not withheld":  {func(in *nodeInputs) { in.evidence, in.withholdGroup = etcd, false }, true, ""},
		"provably not a host": {func(in *nodeInputs) { in.evidence = none }, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := withMachine("running")
			c.change(&in)
			d, _ := mustDecide(t, in)
			require.Equal(t, "born", *d.all.Labels[spc.InstanceIDLabel])
			_, group := d.all.Labels[spc.NodeGroupLabel]
			require.Equal(t, c.group, group)
			require.Contains(t, *d.all.Annotations[spc.NodeAnnotation], c.message)
		})
	}
}

// TestGroupIsRemovedWithProtection: the removal of the group protects a member. It is written even
// if a policy refuses what identifies the machine.
func TestGroupIsRemovedWithProtection(t *testing.T) {
	in := withMachine("running")
	in.evidence = &evidence.Scan{}
	_, in.node = mustDecide(t, in)
	require.Contains(t, in.node.Labels, spc.NodeGroupLabel)
	in.evidence = &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}
	d, _ := mustDecide(t, in)
	after := written(in.node, d.rest)
	require.NotContains(t, after.Labels, spc.NodeGroupLabel)
	require.Contains(t, after.Labels, spc.InstanceIDLabel)
	in.node = after
	_, after = mustDecide(t, in)
	require.NotContains(t, after.Labels, spc.NodeGroupLabel)
}

// TestReportAfterRestart checks that an agent that has not searched for etcd yet leaves the report
// of the last one.
func TestReportAfterRestart(t *testing.T) {
	in := withMachine("running")
	in.evidence = &evidence.Scan{Found: []evidence.FoundServer{foundMember(812)}}
	_, in.node = mustDecide(t, in)
	in.evidence = nil
	d, after := mustDecide(t, in)
	require.NotContains(t, d.all.Annotations, spc.NodeAnnotation)
	require.Empty(t, d.spcAndOpenStackEvents(in.node, after))

	in.evidence = &evidence.Scan{Unknown: []string{"it hangs"}}
	d, _ = mustDecide(t, in)
	require.Contains(t, *d.all.Annotations[spc.NodeAnnotation], "it is not known whether the node holds etcd")
}

func TestMachineEvents(t *testing.T) {
	reasons := func(d nodeDecision, before, after *corev1.Node) (found []string) {
		for _, e := range d.spcAndOpenStackEvents(before, after) {
			found = append(found, e.Type+" "+e.Reason)
		}
		return found
	}
	in := withMachine("failed")
	d, failed := mustDecide(t, in)
	require.Equal(t, []string{"Normal SPCMatched", "Warning SPCMachineFailed"}, reasons(d, in.node, failed))
	require.Empty(t, reasons(d, failed, failed), "no agent repeats the events")

	// The machine recovers: the annotation goes, and no event repeats.
	in = withMachine("running")
	in.node.Annotations, in.evidence = failed.Annotations, &evidence.Scan{}
	d, running := mustDecide(t, in)
	require.Contains(t, d.all.Annotations, spc.ProblemAnnotation)
	require.Equal(t, []string{"Normal SPCMatched"}, reasons(d, failed, running))

	in = withMachine("running")
	in.node.Labels = map[string]string{spc.InstanceIDLabel: "another"}
	d, conflict := mustDecide(t, in)
	require.NotContains(t, d.all.Labels, spc.NodeIDLabel, "labels are not written in doubt")
	require.Equal(t, []string{"Warning SPCConflict"}, reasons(d, in.node, conflict))
}

// TestOpenStackIdentity checks the identifiers that Magnum's autoscaler compares. They are
// written with and without SPC.
func TestOpenStackIdentity(t *testing.T) {
	in := nodeInputs{node: bornHeld("born"), facts: openNetwork(), now: time.Now()}
	d, _ := mustDecide(t, in)
	require.NotContains(t, d.all.Annotations, openstack.Annotation)

	const id = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"
	in.node.Spec.ProviderID = "openstack:///" + id
	in.node.Status.NodeInfo.SystemUUID = strings.ToUpper(id)
	in.node.Status.NodeInfo.MachineID = strings.ReplaceAll(id, "-", "")
	d, after := mustDecide(t, in)
	require.JSONEq(t, `{"providerID":"`+id+`","systemUUID":"`+id+`","machineID":"`+id+`",
		"agree":true,"message":"all agree on `+id+`"}`, after.Annotations[openstack.Annotation])
	require.Empty(t, d.spcAndOpenStackEvents(in.node, after))

	in.node.Status.NodeInfo.MachineID = "deadbeefdeadbeefdeadbeefdeadbeef"
	d, after = mustDecide(t, in)
	events := d.spcAndOpenStackEvents(in.node, after)
	require.Len(t, events, 1)
	require.Equal(t, "OpenStackIDsDiffer", events[0].Reason)
}
