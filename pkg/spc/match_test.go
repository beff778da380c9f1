package spc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// worker is a record with a value in every field that identifies.
func worker(change func(*spc.Record)) spc.Record {
	r := spc.Record{
		PK: 91192, Cluster: 23391, PoolName: "Default Worker Pool", InstanceID: "netatt9dgn-worker-2", ProviderNodeID: "i-0769aa",
		Role: "worker", GroupName: "autoscaling-netatt9dgn-pool-1", PrivateIP: "172.23.1.67", PublicIP: "198.51.100.7",
		Size: "c4.xlarge", State: "running",
	}
	if change != nil {
		change(&r)
	}
	return r
}

// node is a Node that shows nothing but its name.
func node(change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-172-23-1-67", Labels: map[string]string{}}}
	change(n)
	return n
}

func address(of corev1.NodeAddressType, a string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: of, Address: a})
	}
}

func draftOf(instance string) spc.Record {
	return worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID, r.PrivateIP, r.PublicIP, r.State = 8, instance, "", "", "", "draft"
	})
}

func find(n *corev1.Node, records ...spc.Record) spc.Match {
	return spc.NewIndex(&spc.Inventory{Organization: 111, Records: records}).Find(n)
}

func TestFind(t *testing.T) {
	other := worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID, r.PrivateIP, r.PublicIP = 7, "netatt9dgn-worker-3", "i-0888", "172.23.1.68", "198.51.100.8"
	})
	draft := draftOf("x")
	for name, tc := range map[string]struct {
		node     func(*corev1.Node)
		records  []spc.Record
		want     spc.Outcome
		evidence []string
		message  string
	}{
		"provider ID, last segment": {
			node:    func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-west-2a/i-0769aa" },
			records: []spc.Record{worker(nil), other, draft}, want: spc.Matched, evidence: []string{"provider_node_id"},
		},
		"address, IPv4 in IPv6": {
			node: address(corev1.NodeInternalIP, "::ffff:172.23.1.67"), records: []spc.Record{worker(nil), other, draft},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"address with a prefix in the record": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "172.23.1.67/24" })}, want: spc.Matched, evidence: []string{"private_ip"},
		},
		"name in other case": {
			node:    func(n *corev1.Node) { n.Name = "NETATT9DGN-worker-2" },
			records: []spc.Record{worker(nil), other}, want: spc.Matched, evidence: []string{"instance_id"},
		},
		"public address": {
			node: address(corev1.NodeExternalIP, "198.51.100.7"), records: []spc.Record{worker(nil), other},
			want: spc.Matched, evidence: []string{"public_ip"},
		},
		"empty fields match nothing": {node: func(*corev1.Node) {}, records: []spc.Record{draft}, want: spc.Missing},
		"a record that is gone, its address used again": {
			node: address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{
				worker(func(r *spc.Record) { r.PK, r.InstanceID, r.State = 1, "old", "deleting" }), worker(nil),
			},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"only a record that is gone": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.State = "deleting" })}, want: spc.Missing,
		},
		"two live records with one address": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.PK, r.InstanceID = 9, "twin" })},
			want:    spc.Conflict, message: "2 live SPC records match by private_ip: netatt9dgn-worker-2 (node_id 91192, running), twin (node_id 9, running); ask SPC which of them is real",
		},
		"provider ID and address disagree": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "aws:///us-west-2a/i-0769aa"
				address(corev1.NodeInternalIP, "172.23.1.68")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "by provider_node_id the node is SPC instance netatt9dgn-worker-2 (node_id 91192, running), by private_ip it is netatt9dgn-worker-3 (node_id 7, running)",
		},
		"a label left over from another machine": {
			node: func(n *corev1.Node) {
				n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-3"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "its labels name SPC instance netatt9dgn-worker-3, but by private_ip it is netatt9dgn-worker-2 (node_id 91192, cluster 23391); " +
				"if the labels are of a machine that it was before, take them off: kubectl label node ip-172-23-1-67 stackpoint.io/instance_id- ",
		},
		"a label alone is not believed": {
			node:    func(n *corev1.Node) { n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
		},
		"private address among those of both families": {
			node: func(n *corev1.Node) {
				address(corev1.NodeInternalIP, "10.9.9.9")(n)
				address(corev1.NodeInternalIP, "FD00:0:0::67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "172.23.1.67, fd00::67" }), other}, want: spc.Matched, evidence: []string{"private_ip"},
		},
		"provider ID as the cloud spells it, in another case": {
			node:    func(n *corev1.Node) { n.Spec.ProviderID = "openstack:///0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11" },
			records: []spc.Record{worker(func(r *spc.Record) { r.ProviderNodeID = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11" }), other},
			want:    spc.Matched, evidence: []string{"provider_node_id"},
		},
		"hostname label": {
			node:    func(n *corev1.Node) { n.Labels[corev1.LabelHostname] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(nil), other}, want: spc.Matched, evidence: []string{"instance_id"},
		},
		"everything at once": {
			node: func(n *corev1.Node) {
				n.Name, n.Spec.ProviderID = "netatt9dgn-worker-2", "aws:///us-west-2a/i-0769aa"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
				address(corev1.NodeExternalIP, "198.51.100.7")(n)
				n.Labels[spc.InstanceIDLabel], n.Labels[spc.NodeIDLabel], n.Labels[spc.ClusterIDLabel] = "netatt9dgn-worker-2", "91192", "23391"
			},
			records: []spc.Record{worker(nil), other}, want: spc.Matched,
			evidence: []string{"provider_node_id", "private_ip", "instance_id", "public_ip"},
		},
		"an address that every host has": {
			node: address(corev1.NodeInternalIP, "127.0.0.1"), want: spc.Missing,
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "127.0.0.1" })},
		},
		"a provider ID that ends in a slash": {
			node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///" }, want: spc.Missing,
			records: []spc.Record{worker(func(r *spc.Record) { r.ProviderNodeID = "" })},
		},
		"a record that is listed twice": {
			node: address(corev1.NodeInternalIP, "172.23.1.67"), records: []spc.Record{worker(nil), worker(nil)},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"a node_id that is listed twice": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.State = "building" })}, want: spc.Conflict,
		},
		"another record with its instance ID, gone": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.PK, r.State, r.PrivateIP = 5, "deleting", "" })},
			want:    spc.Conflict, message: "2 records have that instance ID",
		},
		"a record without an instance ID": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.InstanceID = "" })}, want: spc.Conflict, message: "has no instance ID",
		},
		"a label of another SPC cluster": {
			node: func(n *corev1.Node) {
				n.Labels[spc.ClusterIDLabel] = "7"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict, message: "its labels name SPC cluster 7, but by private_ip",
		},
		"a cluster label and no machine": {
			node: func(n *corev1.Node) { n.Labels[spc.ClusterIDLabel] = "23391" }, records: []spc.Record{worker(nil)}, want: spc.Missing,
		},
		"a worker that is one of the control plane": {
			node: func(n *corev1.Node) {
				n.Labels["node-role.kubernetes.io/control-plane"] = ""
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict, message: "whose role is worker, and the node is one of the control plane",
		},
		"an address of the same number in another region": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion] = "eu-central-1"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "us-west-2:us-west-2a" })}, want: spc.Conflict,
			message: "in us-west-2, us-west-2a, and the node is in eu-central-1",
		},
		"another zone of the region": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone] = "us-west-2", "us-west-2b"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "us-west-2:us-west-2a" })}, want: spc.Conflict,
		},
		"the address of a machine that the cloud knows as another": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "aws:///us-west-2a/i-0999ff"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict, message: "which is i-0769aa at the cloud, and the node is i-0999ff",
		},
		"a name at the cloud and a number": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "gce://p/us-west1-a/name"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.ProviderNodeID = "4711" })}, want: spc.Matched, evidence: []string{"private_ip"},
		},
		"a public address that has moved": {
			node: func(n *corev1.Node) {
				address(corev1.NodeExternalIP, "198.51.100.7")(n)
				address(corev1.NodeInternalIP, "172.23.1.70")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict, message: "whose private address 172.23.1.67 is not the node's",
		},
		"the region in words": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone] = "eastus", "0"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "East US" })}, want: spc.Matched, evidence: []string{"private_ip"},
		},
		"a draft of the node's name": {
			node: func(n *corev1.Node) { n.Name = "x" }, records: []spc.Record{draftOf("x")},
			want: spc.Missing, message: "SPC instance x (node_id 8, draft) has its name, and no machine yet (state draft)",
		},
		"the labelled machine is going": {
			node:    func(n *corev1.Node) { n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(func(r *spc.Record) { r.State = "Deleting" })}, want: spc.Gone,
			message: "its machine is gone from SPC, instance netatt9dgn-worker-2: its state is Deleting",
		},
		"the labelled machine is not listed": {
			node: func(n *corev1.Node) { n.Labels[spc.NodeIDLabel] = "91192" }, records: []spc.Record{other},
			want: spc.Gone, message: "node_id 91192: it is not in the list any more",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := find(node(tc.node), tc.records...)
			require.Equal(t, tc.want, m.Outcome, m.Message)
			require.Equal(t, tc.evidence, m.Evidence)
			require.NotEmpty(t, m.Message)
			if tc.message != "" {
				require.Contains(t, m.Message, tc.message)
			}
			if tc.want == spc.Matched {
				require.Equal(t, int64(91192), m.Record.PK)
			} else {
				require.Nil(t, m.Record)
			}
		})
	}
}

func TestFindWithoutAnInventoryIsUnknown(t *testing.T) {
	m := spc.NewIndex(nil).Find(node(func(*corev1.Node) {}))
	require.Equal(t, spc.Unknown, m.Outcome)
	require.Contains(t, m.Message, "has not been read yet")
}

// A machine that was deleted gives its address to a new one, whose node registers before the list is asked for again.
func TestANodeIsNotMatchedWithAListThatIsOlder(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	n := node(address(corev1.NodeInternalIP, "172.23.1.67"))
	n.CreationTimestamp = metav1.NewTime(noon)
	list := &spc.Inventory{AsOf: noon.Add(-time.Second), Records: []spc.Record{worker(nil)}}
	m := spc.NewIndex(list).Find(n)
	require.Equal(t, spc.Unknown, m.Outcome)
	require.Contains(t, m.Message, "was asked for before the node was there")
	list.AsOf = noon
	require.Equal(t, spc.Matched, spc.NewIndex(list).Find(n).Outcome)
}
