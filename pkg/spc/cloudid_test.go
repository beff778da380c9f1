package spc_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// TestSameNameElsewhere has machines whose IDs have the same last part, as in kops#17635 (one name
// in two zones of GCE) and kubernetes/autoscaler#1711.
func TestSameNameElsewhere(t *testing.T) {
	const (
		gce    = "gce://p/europe-west1-c/node-1"
		groups = "azure:///subscriptions/s/resourceGroups/"
		blue   = groups + "g/providers/Microsoft.Compute/virtualMachineScaleSets/blue/virtualMachines/0"
		green  = groups + "g/providers/Microsoft.Compute/virtualMachineScaleSets/green/virtualMachines/0"
		own    = "172.23.1.67"
		uuid   = "0fa7b6c2-63fa-4d54-ba5e-5f3c5f4d1e11"
	)
	for name, c := range map[string]struct {
		node, record, privateIP string
		want                    spc.Outcome
		message                 string
	}{
		"kops#17635: another zone": {gce, "gce://p/europe-west1-b/node-1", "", spc.Conflict, "the node's is " + gce},
		"another project":          {gce, "gce://p2/europe-west1-c/node-1", "", spc.Conflict, "whose cloud ID is gce://p2/"},
		"another scale set":        {blue, green, "", spc.Conflict, "whose cloud ID is"},
		"another resource group": {
			groups + "g1/providers/Microsoft.Compute/virtualMachines/vm-1",
			groups + "g2/providers/Microsoft.Compute/virtualMachines/vm-1", "", spc.Conflict, "whose cloud ID is",
		},
		"another zone, with the node's address": {gce, "gce://p/europe-west1-b/node-1", own, spc.Conflict, "whose cloud ID"},
		"another path of the cloud's own ID":    {"aws:///eu-1a/i-0769aa", "aws:///eu-1/i-0769aa", "", spc.Matched, ""},
		"the same":                              {gce, gce, "", spc.Matched, ""},
		"the same in another case":              {groups + "G1/vm-1", groups + "g1/VM-1", "", spc.Matched, ""},
		"without the project":                   {gce, "europe-west1-c/node-1", "", spc.Matched, ""},
		"the same index":                        {blue, blue, "", spc.Matched, ""},
		"name alone":                            {gce, "node-1", "", spc.Matched, ""},
		"name alone, another address":           {gce, "node-1", "172.23.1.99", spc.Conflict, "private address 172.23.1.99"},
		"name alone, the node's address":        {gce, "node-1", own, spc.Matched, ""},
		"index alone, another address":          {blue, "0", "172.23.1.99", spc.Conflict, "private address 172.23.1.99"},
		"number, another address":               {"hcloud://4711", "4711", "172.23.1.99", spc.Matched, ""},
		"number, none of the node":              {"", "4711", own, spc.Matched, ""},
		"number, none of the record":            {"hcloud://4711", "", own, spc.Matched, ""},
		"UUID, another address":                 {"openstack:///" + uuid, uuid, "172.23.1.99", spc.Matched, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := find(nodeWithID(c.node), recordWithID(c.record, c.privateIP))
			require.Equal(t, c.want, m.Outcome, m.Message)
			require.Contains(t, m.Message, c.message)
		})
	}
	here := nodeWithID(gce)
	here.Labels[corev1.LabelTopologyZone], here.Labels[corev1.LabelTopologyRegion] = "europe-west1-c", "europe-west1"
	elsewhere := recordWithID("node-1", "")
	elsewhere.Zone, elsewhere.Location = "europe-west1-b", "europe-west1"
	m := find(here, elsewhere)
	require.Equal(t, spc.Conflict, m.Outcome, m.Message)
	require.Contains(t, m.Message, "but the node is in europe-west1-c")
	here.Name = "netatt9dgn-worker-2"
	m = find(here, recordWithID("node-1", "172.23.1.99"))
	require.Equal(t, spc.Conflict, m.Outcome, m.Message)
	require.Contains(t, m.Message, "by provider_node_id and instance_id", "the name of the node too")
	elsewhere.ProviderNodeID, elsewhere.PK, elsewhere.InstanceID = "gce://p/europe-west1-b/node-1", 9, "twin"
	m = find(nodeWithID(gce), elsewhere, recordWithID(gce, ""))
	require.Equal(t, spc.Matched, m.Outcome, m.Message)
	require.Equal(t, int64(91192), m.Record.PK, "both machines are listed")
}

func nodeWithID(id string) *corev1.Node {
	return node(changes(providerID(id), address(corev1.NodeInternalIP, "172.23.1.67")))
}

func recordWithID(id, privateIP string) spc.Record {
	return worker(func(r *spc.Record) { r.ProviderNodeID, r.PrivateIP, r.PublicIP = id, privateIP, "" })
}
