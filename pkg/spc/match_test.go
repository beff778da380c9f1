package spc_test

import (
	"testing"

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

func TestFind(t *testing.T) {
	other := worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID, r.PrivateIP, r.PublicIP = 7, "netatt9dgn-worker-3", "i-0888", "172.23.1.68", "198.51.100.8"
	})
	draft := worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID, r.PrivateIP, r.PublicIP = 8, "x", "", "", ""
	})
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
			want:    spc.Conflict, message: "2 live SPC records match by private_ip: netatt9dgn-worker-2 (node_id 91192), twin (node_id 9)",
		},
		"provider ID and address disagree": {
			node: func(n *corev1.Node) {
				n.Spec.ProviderID = "aws:///us-west-2a/i-0769aa"
				address(corev1.NodeInternalIP, "172.23.1.68")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "by provider_node_id the node is SPC instance netatt9dgn-worker-2, by private_ip it is netatt9dgn-worker-3",
		},
		"a label left over from another machine": {
			node: func(n *corev1.Node) {
				n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-3"
				address(corev1.NodeInternalIP, "172.23.1.67")(n)
			},
			records: []spc.Record{worker(nil), other}, want: spc.Conflict,
			message: "its labels name SPC instance netatt9dgn-worker-3 (node_id ), but by private_ip it is instance netatt9dgn-worker-2 (node_id 91192)",
		},
		"a label alone is not believed": {
			node:    func(n *corev1.Node) { n.Labels[spc.InstanceIDLabel] = "netatt9dgn-worker-2" },
			records: []spc.Record{worker(nil)}, want: spc.Conflict,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := spc.Find(node(tc.node), &spc.Inventory{Records: tc.records})
			require.Equal(t, tc.want, m.Outcome, m.Message)
			require.Equal(t, tc.evidence, m.Evidence)
			require.NotEmpty(t, m.Message)
			if tc.message != "" {
				require.Equal(t, tc.message, m.Message)
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
	m := spc.Find(node(func(*corev1.Node) {}), nil)
	require.Equal(t, spc.Unknown, m.Outcome)
	require.NotEmpty(t, m.Message)
}

func TestReported(t *testing.T) {
	n := node(func(n *corev1.Node) {
		address(corev1.NodeInternalIP, "172.23.1.67")(n)
		n.Labels[spc.SizeLabel] = "set-by-hand"
		n.Labels[spc.RoleLabel] = "worker"
	})
	m := spc.Find(n, &spc.Inventory{Records: []spc.Record{worker(nil)}})
	report, err := spc.Reported(n, m, 111)
	require.NoError(t, err)
	got := map[string]string{}
	for k, v := range report.Labels {
		got[k] = *v
	}
	require.Equal(t, map[string]string{
		spc.InstanceIDLabel: "netatt9dgn-worker-2", spc.NodeIDLabel: "91192", spc.NodeGroupLabel: "autoscaling-netatt9dgn-pool-1",
		spc.NodePoolLabel: "Default-Worker-Pool", spc.ClusterIDLabel: "23391", spc.PrivateIPLabel: "172.23.1.67",
	}, got)
	require.Equal(t, []string{"stackpoint.io/size=set-by-hand (SPC says c4.xlarge)"}, report.Kept)
	require.JSONEq(t, `{"org":111,"pk":91192,"cluster":23391,"pool_name":"Default Worker Pool","instance_id":"netatt9dgn-worker-2",
		"provider_node_id":"i-0769aa","role":"worker","group_name":"autoscaling-netatt9dgn-pool-1","private_ip":"172.23.1.67",
		"public_ip":"198.51.100.7","size":"c4.xlarge","state":"running","evidence":["private_ip"]}`, *report.Annotations[spc.NodeAnnotation])
}

func TestReportedTwiceChangesNothing(t *testing.T) {
	n := node(address(corev1.NodeInternalIP, "172.23.1.67"))
	inventory := &spc.Inventory{Records: []spc.Record{worker(func(r *spc.Record) { r.GroupName = "" })}}
	first, err := spc.Reported(n, spc.Find(n, inventory), 1)
	require.NoError(t, err)
	require.NotContains(t, first.Labels, spc.NodeGroupLabel, "a group is never invented")
	n.Annotations = map[string]string{}
	for k, v := range first.Labels {
		n.Labels[k] = *v
	}
	for k, v := range first.Annotations {
		n.Annotations[k] = *v
	}
	again := spc.Find(n, inventory)
	require.Equal(t, spc.Matched, again.Outcome, again.Message)
	second, err := spc.Reported(n, again, 1)
	require.NoError(t, err)
	require.Empty(t, second.Labels)
	require.Empty(t, second.Annotations)
}

func TestDoubtWritesNothing(t *testing.T) {
	n := node(address(corev1.NodeInternalIP, "172.23.1.67"))
	for name, inventory := range map[string]*spc.Inventory{
		"no list":     nil,
		"no record":   {},
		"two records": {Records: []spc.Record{worker(nil), worker(func(r *spc.Record) { r.PK = 2 })}},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := spc.Reported(n, spc.Find(n, inventory), 1)
			require.NoError(t, err)
			require.Empty(t, report.Labels)
			require.Empty(t, report.Annotations)
		})
	}
}
