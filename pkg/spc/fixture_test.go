package spc_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// worker returns a record with a value in every field that identifies a machine.
func worker(change func(*spc.Record)) spc.Record {
	r := spc.Record{
		PK: 91192, Cluster: 23391, PoolName: "Default Worker Pool", InstanceID: "netatt9dgn-worker-2",
		ProviderNodeID: "i-0769aa", Role: "worker", GroupName: "autoscaling-netatt9dgn-pool-1",
		PrivateIP: "172.23.1.67", PublicIP: "198.51.100.7", Size: "c4.xlarge", State: "running",
	}
	if change != nil {
		change(&r)
	}
	return r
}

// draftOf returns the record of an instance without a machine.
func draftOf(instance string) spc.Record {
	return worker(func(r *spc.Record) {
		r.PK, r.InstanceID, r.ProviderNodeID, r.PrivateIP, r.PublicIP, r.State = 8, instance, "", "", "", "draft"
	})
}

// A nodeChange is a property of a Node.
type nodeChange = func(*corev1.Node)

// changes returns a change that makes all of these.
func changes(all ...nodeChange) nodeChange {
	return func(n *corev1.Node) {
		for _, change := range all {
			change(n)
		}
	}
}

// label returns a change that sets a label.
func label(key, value string) nodeChange { return func(n *corev1.Node) { n.Labels[key] = value } }

// providerID returns a change that sets the provider ID.
func providerID(id string) nodeChange { return func(n *corev1.Node) { n.Spec.ProviderID = id } }

// node returns a Node that has nothing but a name.
func node(change nodeChange) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ip-172-23-1-67", Labels: map[string]string{}}}
	change(n)
	return n
}

// address returns a change that adds an address to a Node.
func address(of corev1.NodeAddressType, a string) nodeChange {
	return func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: of, Address: a})
	}
}

// nodeOfAge returns a Node that has the worker's address and is this old at noon.
func nodeOfAge(age time.Duration, change func(*corev1.Node)) *corev1.Node {
	n := node(address(corev1.NodeInternalIP, "172.23.1.67"))
	n.CreationTimestamp = metav1.NewTime(noon().Add(-age))
	n.Annotations = map[string]string{}
	if change != nil {
		change(n)
	}
	return n
}

// registeredNode returns a Node that is an hour old. Its kubelet reports if ready is set.
func registeredNode(name, ip string, ready bool) *corev1.Node {
	n := node(address(corev1.NodeInternalIP, ip))
	n.Name, n.CreationTimestamp = name, metav1.NewTime(noon().Add(-time.Hour))
	status := corev1.ConditionUnknown
	if ready {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func find(n *corev1.Node, records ...spc.Record) spc.Match {
	return spc.NewIndex(&spc.Inventory{Organization: 111, Records: records}).Find(n)
}

// newReport returns the report about a Node at noon.
func newReport(t *testing.T, n *corev1.Node, terms spc.Terms, records ...spc.Record) spc.Report {
	t.Helper()
	terms.Now = noon()
	x := spc.NewIndex(&spc.Inventory{Organization: 111, AsOf: noon(), Records: records})
	report, err := spc.NewReport(n, x.Find(n), terms)
	require.NoError(t, err)
	return report
}

// applied returns the Node after a patch with the report.
func applied(n *corev1.Node, r spc.Report) *corev1.Node {
	n = n.DeepCopy()
	for to, changes := range map[*map[string]string]map[string]*string{
		&n.Labels: r.Labels, &n.Annotations: r.Annotations,
	} {
		for key, value := range changes {
			if *to == nil {
				*to = map[string]string{}
			}
			if value == nil {
				delete(*to, key)
			} else {
				(*to)[key] = *value
			}
		}
	}
	return n
}

func stackpointLabels(n *corev1.Node) map[string]string {
	found := map[string]string{}
	for key, value := range n.Labels {
		if strings.HasPrefix(key, "stackpoint.io/") {
			found[key] = value
		}
	}
	return found
}
