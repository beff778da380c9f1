package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/openstack"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// machineOf is a situation of a node with the list that says this of its machine.
func machineOf(state string) situation {
	const name = "born"
	n := bornHeld(name)
	n.UID = "uid-1"
	return situation{
		node: n, facts: open(), spc: true, withholdGroup: true, now: time.Now(), known: protect.Known{ClustersKnown: true},
		inventory: spc.NewIndex(&spc.Inventory{Records: []spc.Record{{PK: 1, Cluster: 2, InstanceID: name, GroupName: "g", State: state}}}),
	}
}

func TestTheGroupWaitsForTheProofThatThereIsNoEtcd(t *testing.T) {
	etcd := &protect.HostEvidence{Found: []protect.Found{local(812)}}
	for name, c := range map[string]struct {
		change func(*situation)
		group  bool
		says   string
	}{
		"the host was not looked at":   {func(*situation) {}, false, "whether the node holds etcd is not known"},
		"the host cannot be looked at": {func(s *situation) { s.evidence, s.blind = &protect.HostEvidence{}, "it hangs" }, false, "whether the node holds etcd is not known"},
		"something could not be read":  {func(s *situation) { s.evidence = &protect.HostEvidence{Unknown: []string{"the process table"}} }, false, "is not known"},
		"etcd is there":                {func(s *situation) { s.evidence = etcd }, false, "the node holds etcd"},
		"etcd is there, not withheld":  {func(s *situation) { s.evidence, s.withholdGroup = etcd, false }, true, ""},
		"none is there":                {func(s *situation) { s.evidence = &protect.HostEvidence{} }, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := machineOf("running")
			c.change(&s)
			o, err := decide(s)
			require.NoError(t, err)
			require.Equal(t, "born", *o.all.Labels[spc.InstanceIDLabel])
			_, group := o.all.Labels[spc.NodeGroupLabel]
			require.Equal(t, c.group, group)
			require.Contains(t, *o.all.Annotations[spc.NodeAnnotation], c.says)
		})
	}
}

func TestNewsOfTheMachine(t *testing.T) {
	after := func(n *corev1.Node, o outcome) *corev1.Node {
		n = n.DeepCopy()
		for key, value := range o.all.Annotations {
			if delete(n.Annotations, key); value != nil {
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, key, *value)
			}
		}
		return n
	}
	reasons := func(o outcome, before, after *corev1.Node) (found []string) {
		for _, e := range o.machineNews(before, after) {
			found = append(found, e.kind+" "+e.reason)
		}
		return found
	}
	s := machineOf("failed")
	o, err := decide(s)
	require.NoError(t, err)
	told := after(s.node, o)
	require.Equal(t, []string{"Normal SPCMatched", "Warning SPCMachineFailed"}, reasons(o, s.node, told))
	require.Empty(t, reasons(o, told, told), "said once, by whatever agent")

	// It is well again, which takes the annotation off and says nothing twice.
	s = machineOf("running")
	s.node.Annotations = told.Annotations
	o, err = decide(s)
	require.NoError(t, err)
	require.Contains(t, o.all.Annotations, spc.ProblemAnnotation)
	require.Equal(t, []string{"Normal SPCMatched"}, reasons(o, told, after(s.node, o)))

	s = machineOf("running")
	s.node.Labels = map[string]string{spc.InstanceIDLabel: "another"}
	o, err = decide(s)
	require.NoError(t, err)
	require.NotContains(t, o.all.Labels, spc.NodeIDLabel, "doubt writes nothing")
	require.Equal(t, []string{"Warning SPCConflict"}, reasons(o, s.node, after(s.node, o)))
}

// The identifiers that Magnum's autoscaler compares are on the node, SPC or not.
func TestAMachineOfOpenStack(t *testing.T) {
	s := situation{node: bornHeld("born"), facts: open(), now: time.Now()}
	o, err := decide(s)
	require.NoError(t, err)
	require.NotContains(t, o.all.Annotations, openstack.Annotation)

	s.node.Spec.ProviderID = "openstack:///0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"
	s.node.Status.NodeInfo.SystemUUID, s.node.Status.NodeInfo.MachineID = "0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11", "0fa7b6c263fa4d54ba5e5f3c5f4d1e11"
	o, err = decide(s)
	require.NoError(t, err)
	require.JSONEq(t, `{"providerID":"0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11","systemUUID":"0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11",
		"machineID":"0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11","agree":true,"message":"all agree on 0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"}`,
		*o.all.Annotations[openstack.Annotation])
	written := s.node.DeepCopy()
	written.Annotations[openstack.Annotation] = *o.all.Annotations[openstack.Annotation]
	require.Empty(t, o.machineNews(s.node, written))

	s.node.Status.NodeInfo.MachineID = "deadbeefdeadbeefdeadbeefdeadbeef"
	o, err = decide(s)
	require.NoError(t, err)
	written.Annotations[openstack.Annotation] = *o.all.Annotations[openstack.Annotation]
	news := o.machineNews(s.node, written)
	require.Len(t, news, 1)
	require.Equal(t, "OpenStackIDsDiffer", news[0].reason)
}
