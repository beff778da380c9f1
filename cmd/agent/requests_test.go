package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// mostRequests is what a node's life may cost the API server, from its birth to its release: a cluster has many. They are
//
//  1. the watch of the Node, which begins with the Node as it is,
//  2. the write of what is missing when the agent first looks: no CNI configuration, say,
//  3. the write of what is missing when that has come: flannel's subnet file,
//  4. the release: the cordon, the leftover taints and the record in one,
//  5. the conditions that follow from it,
//  6. the event that tells of it.
const mostRequests = 6

// fewRequests follows a worker through its life and counts at the API server what its agent asked for. The node lifecycle
// controller is at work beside it, as in every cluster: it may put a taint back between the two writes of the release, which
// it takes off by itself, and which must cost the agent nothing.
func fewRequests(t *testing.T, s site) {
	_, err := s.StartControllers("node-lifecycle-controller")
	require.NoError(t, err)
	root := t.TempDir()
	put(t, root, "/proc/sys/kernel/random/boot_id", bootID(9)+"\n", 0o444)
	node, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-9", InternalIP: "192.0.2.9", BootID: bootID(9)})
	require.NoError(t, err)
	s.until(node.Name, "tainted for its hold", func(n *corev1.Node) bool { return len(leftovers(n)) == 2 })
	s.run(node.Name, root, "--tick=1s")
	waiting := func(reason string) {
		s.until(node.Name, "waiting: "+reason, func(n *corev1.Node) bool { return is(n, readiness.NetworkHeld).Reason == reason })
	}
	waiting(readiness.WaitingForCNI)
	flannelButSubnet(t, root)
	waiting(readiness.WaitingForFlannel)
	flannel(t, root)
	s.until(node.Name, "released", func(n *corev1.Node) bool {
		record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
		return err == nil && record.State == readiness.Released && is(n, readiness.NetworkHeld).Status == corev1.ConditionFalse
	})
	require.Eventually(t, func() bool { return len(s.requests(node.Name, "events")) > 0 }, soon, 10*time.Millisecond, "the release is told")

	all := s.requests(node.Name, "")
	var list string
	for _, r := range all {
		list += fmt.Sprintf("  %s %s %s %s\n", r.Verb, r.Resource, r.Subresource, r.Name)
	}
	t.Logf("the life of a node in %d requests:\n%s", len(all), list)
	require.LessOrEqual(t, len(all), mostRequests, list)

	settled := len(all)
	steady := time.NewTimer(3 * time.Second) // several ticks
	defer steady.Stop()
	<-steady.C
	require.Len(t, s.requests(node.Name, ""), settled, "none in steady state")
	require.Empty(t, leftovers(s.node(node.Name)), "nothing that followed from the hold keeps pods away")
}

// leftovers are the taints that the node lifecycle controller makes from a hold.
func leftovers(n *corev1.Node) (keys []string) {
	for _, taint := range n.Spec.Taints {
		if taint.Key == corev1.TaintNodeUnschedulable || taint.Key == corev1.TaintNodeNetworkUnavailable {
			keys = append(keys, taint.Key)
		}
	}
	return keys
}

// requests are those of the agent of a node, of one resource or of all.
func (s site) requests(node, resource string) []testenv.Request {
	s.t.Helper()
	all, err := s.Requests("system:serviceaccount:holdfast-system:holdfast-agent")
	require.NoError(s.t, err)
	var found []testenv.Request
	for _, r := range all {
		if r.Node == node && (resource == "" || r.Resource == resource) {
			found = append(found, r)
		}
	}
	return found
}
