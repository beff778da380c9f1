package spc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func TestFind(t *testing.T) {
	other := worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID = 7, "netatt9dgn-worker-3", "i-0888"
		r.PrivateIP, r.PublicIP = "172.23.1.68", "198.51.100.8"
	})
	draft := draftOf("x")
	for name, tc := range map[string]struct {
		node     func(*corev1.Node)
		records  []spc.Record
		want     spc.Outcome
		evidence []string
		message  string
	}{
		"provider ID": {
			node:    func(n *corev1.Node) { n.Spec.ProviderID = "aws:///us-west-2a/i-0769aa" },
			records: []spc.Record{worker(nil), other, draft}, want: spc.Matched, evidence: []string{"provider_node_id"},
		},
		"IPv4 in IPv6": {
			node: address(corev1.NodeInternalIP, "::ffff:172.23.1.67"), records: []spc.Record{worker(nil), other, draft},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"prefix length": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "172.23.1.67/24" })},
			want:    spc.Matched, evidence: []string{"private_ip"},
		},
		"name in upper case": {
			node:    func(n *corev1.Node) { n.Name = "NETATT9DGN-worker-2" },
			records: []spc.Record{worker(nil), other}, want: spc.Matched, evidence: []string{"instance_id"},
		},
		"public address": {
			node: address(corev1.NodeExternalIP, "198.51.100.7"), records: []spc.Record{worker(nil), other},
			want: spc.Matched, evidence: []string{"public_ip"},
		},
		"empty fields": {node: func(*corev1.Node) {}, records: []spc.Record{draft}, want: spc.Missing},
		"reused address": {
			node: address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{
				worker(func(r *spc.Record) { r.PK, r.InstanceID, r.State = 1, "old", "deleting" }), worker(nil),
			},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"deleted record": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.State = "deleting" })}, want: spc.Missing,
		},
		"duplicate address": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.PK, r.InstanceID = 9, "twin" })},
			want:    spc.Conflict,
			message: "2 live SPC records match by private_ip: netatt9dgn-worker-2 (node_id 91192, running), " +
				"twin (node_id 9, running); find out from SPC which one is correct",
		},
		"provider ID against address": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "aws:///us-west-2a/i-0769aa"
				address(corev1.NodeInternalIP, "172.23.1.68")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "by provider_node_id the node is SPC instance netatt9dgn-worker-2 (node_id 91192, running), " +
				"by private_ip it is netatt9dgn-worker-3 (node_id 7, running)",
		},
		"label of another machine": {
			node: func(n *corev1.Node) {
				n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-3"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "its labels name SPC instance netatt9dgn-worker-3, but by private_ip it is netatt9dgn-worker-2 " +
				"(node_id 91192, cluster 23391); if the labels belong to an earlier machine, remove them: " +
				"kubectl label node ip-172-23-1-67 stackpoint.io/instance_id- ",
		},
		"label without evidence": {
			node:    func(n *corev1.Node) { n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
		},
		"dual-stack addresses": {
			node: func(n *corev1.Node) {
				address(corev1.NodeInternalIP, "10.9.9.9")(n)
				address(corev1.NodeInternalIP, "FD00:0:0::67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "172.23.1.67, fd00::67" }), other},
			want:    spc.Matched, evidence: []string{"private_ip"},
		},
		"provider ID in upper case": {
			node: func(n *corev1.Node) { n.Spec.ProviderID = "openstack:///0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11" },
			records: []spc.Record{worker(func(r *spc.Record) {
				r.ProviderNodeID = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"
			}), other},
			want: spc.Matched, evidence: []string{"provider_node_id"},
		},
		"hostname label": {
			node:    func(n *corev1.Node) { n.Labels[corev1.LabelHostname] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(nil), other}, want: spc.Matched, evidence: []string{"instance_id"},
		},
		"all evidence": {
			node: func(n *corev1.Node) {
				n.Name, n.Spec.ProviderID = "netatt9dgn-worker-2", "aws:///us-west-2a/i-0769aa"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
				address(corev1.NodeExternalIP, "198.51.100.7")(n)
				n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2"
				n.Labels[spc.NodeIDLabel], n.Labels[spc.ClusterIDLabel] = "91192", "23391"
			},
			records: []spc.Record{worker(nil), other}, want: spc.Matched,
			evidence: []string{"provider_node_id", "private_ip", "instance_id", "public_ip"},
		},
		"loopback address": {
			node: address(corev1.NodeInternalIP, "127.0.0.1"), want: spc.Missing,
			records: []spc.Record{worker(func(r *spc.Record) { r.PrivateIP = "127.0.0.1" })},
		},
		"empty provider ID": {
			node: func(n *corev1.Node) { n.Spec.ProviderID = "aws:///" }, want: spc.Missing,
			records: []spc.Record{worker(func(r *spc.Record) { r.ProviderNodeID = "" })},
		},
		"repeated record": {
			node: address(corev1.NodeInternalIP, "172.23.1.67"), records: []spc.Record{worker(nil), worker(nil)},
			want: spc.Matched, evidence: []string{"private_ip"},
		},
		"repeated node_id": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.State = "building" })}, want: spc.Conflict,
		},
		"deleted record with the same instance ID": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.PK, r.State, r.PrivateIP = 5, "deleting", "" })},
			want:    spc.Conflict,
			message: "2 records have that instance ID",
		},
		"no instance ID": {
			node:    address(corev1.NodeInternalIP, "172.23.1.67"),
			records: []spc.Record{worker(func(r *spc.Record) { r.InstanceID = "" })}, want: spc.Conflict,
			message: "has no instance ID",
		},
		"label of another cluster": {
			node: func(n *corev1.Node) {
				n.Labels[spc.ClusterIDLabel] = "7"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
			message: "its labels name SPC cluster 7, but by private_ip",
		},
		"cluster label only": {
			node:    func(n *corev1.Node) { n.Labels[spc.ClusterIDLabel] = "23391" },
			records: []spc.Record{worker(nil)}, want: spc.Missing,
		},
		"worker role on the control plane": {
			node: func(n *corev1.Node) {
				n.Labels["node-role.kubernetes.io/control-plane"] = ""
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
			message: "whose role is worker, but the node belongs to the control plane",
		},
		"address in another region": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion] = "eu-central-1"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "us-west-2:us-west-2a" })}, want: spc.Conflict,
			message: "in us-west-2, us-west-2a, but the node is in eu-central-1",
		},
		"another zone": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone] = "us-west-2", "us-west-2b"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "us-west-2:us-west-2a" })}, want: spc.Conflict,
		},
		"another cloud ID": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "aws:///us-west-2a/i-0999ff"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
			message: "whose cloud ID is i-0769aa, but the node's is i-0999ff",
		},
		"cloud IDs of different kinds": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "gce://p/us-west1-a/name"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.ProviderNodeID = "4711" })},
			want:    spc.Matched, evidence: []string{"private_ip"},
		},
		"moved public address": {
			node: func(n *corev1.Node) {
				address(corev1.NodeExternalIP, "198.51.100.7")(n)
				address(corev1.NodeInternalIP, "172.23.1.70")(n)
			},
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
			message: "whose private address 172.23.1.67 is not the node's",
		},
		"region in words": {
			node: func(n *corev1.Node) {
				n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone] = "eastus", "0"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(func(r *spc.Record) { r.Location = "East US" })},
			want:    spc.Matched, evidence: []string{"private_ip"},
		},
		"draft with the name": {
			node: func(n *corev1.Node) { n.Name = "x" }, records: []spc.Record{draftOf("x")},
			want: spc.Missing, message: "SPC instance x (node_id 8, draft) has its name but no machine yet (state draft)",
		},
		"draft with the name, address of a failed machine": {
			node:    func(n *corev1.Node) { n.Name = "x"; address(corev1.NodeInternalIP, "172.23.1.67")(n) },
			records: []spc.Record{worker(func(r *spc.Record) { r.State, r.ProviderNodeID = "failed", "" }), draftOf("x")},
			want:    spc.Conflict,
			message: "by private_ip it is SPC instance netatt9dgn-worker-2, but SPC instance x (node_id 8, draft) has its name",
		},
		"draft with the name, provider ID of another": {
			node:    func(n *corev1.Node) { n.Name, n.Spec.ProviderID = "y", "aws:///us-west-2a/i-0769aa" },
			records: []spc.Record{worker(nil), draftOf("y")}, want: spc.Matched, evidence: []string{"provider_node_id"},
		},
		"labelled machine deleting": {
			node:    func(n *corev1.Node) { n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(func(r *spc.Record) { r.State = "Deleting" })}, want: spc.Gone,
			message: "its machine no longer exists in SPC, instance netatt9dgn-worker-2: its state is Deleting",
		},
		"labelled machine not listed": {
			node: func(n *corev1.Node) { n.Labels[spc.NodeIDLabel] = "91192" }, records: []spc.Record{other},
			want: spc.Gone, message: "node_id 91192: it is no longer in the list",
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

func TestFindWithoutInventory(t *testing.T) {
	m := spc.NewIndex(nil).Find(node(func(*corev1.Node) {}))
	require.Equal(t, spc.Unknown, m.Outcome)
	require.Contains(t, m.Message, "has not been read yet")
}

// A new machine gets the address of a deleted one, and its Node registers before the list
// is requested again.
func TestFindInOlderInventory(t *testing.T) {
	n := nodeOfAge(0, nil)
	list := &spc.Inventory{AsOf: noon().Add(-time.Second), Records: []spc.Record{worker(nil)}}
	m := spc.NewIndex(list).Find(n)
	require.Equal(t, spc.Unknown, m.Outcome)
	require.Contains(t, m.Message, "is older than the node")
	list.AsOf = noon()
	require.Equal(t, spc.Matched, spc.NewIndex(list).Find(n).Outcome)
}
