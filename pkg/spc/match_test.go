package spc_test

import (
	"strings"
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
	own, public := address(corev1.NodeInternalIP, "172.23.1.67"), address(corev1.NodeExternalIP, "198.51.100.7")
	named := func(name string) nodeChange { return func(n *corev1.Node) { n.Name = name } }
	ownID := providerID("aws:///us-west-2a/i-0769aa")
	ownLabel, asWorker := label(spc.InstanceIDLabel, "netatt9dgn-worker-2"), named("netatt9dgn-worker-2")
	region := func(region string) nodeChange { return label(corev1.LabelTopologyRegion, region) }
	zone := func(zone string) nodeChange { return label(corev1.LabelTopologyZone, zone) }
	controlPlane := label("node-role.kubernetes.io/control-plane", "")
	type records = []spc.Record
	of := func(change func(*spc.Record)) records { return records{worker(change)} }
	in := func(location string) records { return of(func(r *spc.Record) { r.Location = location }) }
	one, two, three := records{worker(nil)}, records{worker(nil), other}, records{worker(nil), other, draftOf("x")}
	drafts := records{draftOf("x")}
	beside := func(change func(*spc.Record)) records { return records{worker(nil), worker(change)} }
	for name, tc := range map[string]struct {
		node    nodeChange
		records records
		want    spc.Outcome
		text    string // the evidence of a match, else a part of the message
	}{
		"provider ID":    {ownID, three, spc.Matched, "provider_node_id"},
		"IPv4 in IPv6":   {address(corev1.NodeInternalIP, "::ffff:172.23.1.67"), three, spc.Matched, "private_ip"},
		"prefix length":  {own, of(func(r *spc.Record) { r.PrivateIP = "172.23.1.67/24" }), spc.Matched, "private_ip"},
		"upper case":     {named("NETATT9DGN-worker-2"), two, spc.Matched, "instance_id"},
		"public address": {public, two, spc.Matched, "public_ip"},
		"hostname label": {label(corev1.LabelHostname, "netatt9dgn-worker-2"), two, spc.Matched, "instance_id"},
		"empty fields":   {changes(), drafts, spc.Missing, ""},
		"reused address": {
			own, beside(func(r *spc.Record) { r.PK, r.InstanceID, r.State = 1, "old", "deleting" }), spc.Matched, "private_ip",
		},
		"deleted record": {own, of(func(r *spc.Record) { r.State = "deleting" }), spc.Missing, ""},
		"duplicate address": {
			own, beside(func(r *spc.Record) { r.PK, r.InstanceID = 9, "twin" }), spc.Conflict,
			"2 live SPC records match by private_ip: netatt9dgn-worker-2 (node_id 91192, running), " +
				"twin (node_id 9, running); find out from SPC which one is correct",
		},
		"provider ID against address": {
			changes(ownID, address(corev1.NodeInternalIP, "172.23.1.68")), two, spc.Conflict,
			"by provider_node_id the node is SPC instance netatt9dgn-worker-2 (node_id 91192, running), " +
				"by private_ip it is netatt9dgn-worker-3 (node_id 7, running)",
		},
		"label of another machine": {
			changes(own, label(spc.InstanceIDLabel, "netatt9dgn-worker-3")), two, spc.Conflict,
			"its labels name SPC instance netatt9dgn-worker-3, but by private_ip it is netatt9dgn-worker-2 " +
				"(node_id 91192, cluster 23391); if the labels belong to an earlier machine, remove them: " +
				"kubectl label node ip-172-23-1-67 stackpoint.io/instance_id- ",
		},
		"label without evidence": {ownLabel, one, spc.Conflict, ""},
		"dual-stack addresses": {
			changes(address(corev1.NodeInternalIP, "10.9.9.9"), address(corev1.NodeInternalIP, "FD00:0:0::67")),
			append(of(func(r *spc.Record) { r.PrivateIP = "172.23.1.67, fd00::67" }), other), spc.Matched, "private_ip",
		},
		"provider ID in upper case": {
			providerID("openstack:///0FA7B6C2-63FA-4D54-BA5E-5F3C5F4D1E11"),
			of(func(r *spc.Record) { r.ProviderNodeID = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11" }),
			spc.Matched, "provider_node_id",
		},
		"all evidence": {
			changes(own, public, ownID, asWorker, ownLabel, label(spc.NodeIDLabel, "91192"), label(spc.ClusterIDLabel, "23391")),
			two, spc.Matched, "provider_node_id private_ip instance_id public_ip",
		},
		"loopback address": {
			address(corev1.NodeInternalIP, "127.0.0.1"), of(func(r *spc.Record) { r.PrivateIP = "127.0.0.1" }), spc.Missing, "",
		},
		"empty provider ID": {providerID("aws:///"), of(func(r *spc.Record) { r.ProviderNodeID = "" }), spc.Missing, ""},
		"repeated record":   {own, records{worker(nil), worker(nil)}, spc.Matched, "private_ip"},
		"repeated node_id":  {own, beside(func(r *spc.Record) { r.State = "building" }), spc.Conflict, ""},
		"deleted record with the same instance ID": {
			own, beside(func(r *spc.Record) { r.PK, r.State, r.PrivateIP = 5, "deleting", "" }), spc.Conflict,
			"2 records have that instance ID",
		},
		"no instance ID": {own, of(func(r *spc.Record) { r.InstanceID = "" }), spc.Conflict, "has no instance ID"},
		"label of another cluster": {
			changes(own, label(spc.ClusterIDLabel, "7")), one, spc.Conflict, "its labels name SPC cluster 7, but by private_ip",
		},
		"cluster label only": {label(spc.ClusterIDLabel, "23391"), one, spc.Missing, ""},
		"worker role on the control plane": {
			changes(own, controlPlane), one, spc.Conflict, "whose role is worker, but the node belongs to the control plane",
		},
		"address in another region": {
			changes(own, region("eu-central-1")), in("us-west-2:us-west-2a"), spc.Conflict,
			"in us-west-2, us-west-2a, but the node is in eu-central-1",
		},
		"another zone": {
			changes(own, region("us-west-2"), zone("us-west-2b")), in("us-west-2:us-west-2a"), spc.Conflict, "",
		},
		"region in words": {changes(own, region("eastus"), zone("0")), in("East US"), spc.Matched, "private_ip"},
		"another cloud ID": {
			changes(own, providerID("aws:///us-west-2a/i-0999ff")), one, spc.Conflict,
			"whose cloud ID is i-0769aa, but the node's is i-0999ff",
		},
		"cloud IDs of different kinds": {
			changes(own, providerID("gce://p/us-west1-a/name")), of(func(r *spc.Record) { r.ProviderNodeID = "4711" }),
			spc.Matched, "private_ip",
		},
		"moved public address": {
			changes(public, address(corev1.NodeInternalIP, "172.23.1.70")), one, spc.Conflict,
			"whose private address 172.23.1.67 is not the node's",
		},
		"draft with the name": {
			named("x"), drafts, spc.Missing,
			"SPC instance x (node_id 8, draft) has its name but no machine yet (state draft)",
		},
		"draft with the name, address of a failed machine": {
			changes(own, named("x")),
			append(of(func(r *spc.Record) { r.State, r.ProviderNodeID = "failed", "" }), draftOf("x")), spc.Conflict,
			"by private_ip it is SPC instance netatt9dgn-worker-2, but SPC instance x (node_id 8, draft) has its name",
		},
		"draft with the name, provider ID of another": {changes(ownID, named("x")), three, spc.Matched, "provider_node_id"},
		"labelled machine deleting": {
			ownLabel, of(func(r *spc.Record) { r.State = "Deleting" }), spc.Gone,
			"its machine no longer exists in SPC, instance netatt9dgn-worker-2: its state is Deleting",
		},
		"labelled machine not listed": {
			label(spc.NodeIDLabel, "91192"), records{other}, spc.Gone, "node_id 91192: it is no longer in the list",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := find(node(tc.node), tc.records...)
			require.Equal(t, tc.want, m.Outcome, m.Message)
			require.NotEmpty(t, m.Message)
			if tc.want == spc.Matched {
				require.Equal(t, tc.text, strings.Join(m.Evidence, " "))
				require.Equal(t, int64(91192), m.Record.PK)
				return
			}
			require.Contains(t, m.Message, tc.text)
			require.Empty(t, m.Evidence)
			require.Nil(t, m.Record)
		})
	}
}

func TestFindWithoutInventory(t *testing.T) {
	m := spc.NewIndex(nil).Find(node(changes()))
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
