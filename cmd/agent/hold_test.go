package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// holdState returns the state in the hold record of a Node, or an empty one.
func holdState(n *corev1.Node) readiness.State {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	if err != nil {
		return ""
	}
	return record.State
}

// isHeldNode reports whether an agent holds the Node.
func isHeldNode(n *corev1.Node) bool {
	return n.Spec.Unschedulable && condition(n, readiness.NetworkHeld).Status == corev1.ConditionTrue
}

// isReleasedNode reports whether a hold has ended completely.
func isReleasedNode(n *corev1.Node) bool {
	return holdState(n) == readiness.Released && !n.Spec.Unschedulable &&
		condition(n, readiness.NetworkHeld).Status == corev1.ConditionFalse &&
		condition(n, corev1.NodeNetworkUnavailable).Status != corev1.ConditionTrue
}

// testExistingNodes has Nodes in any state that exist before Holdfast. The managed fields
// of the API server show that the agent does not write their spec.
func testExistingNodes(t *testing.T, f fixture) {
	for name, spec := range map[string]apiserver.NodeSpec{
		"old-serving":  {Ready: true},
		"old-unready":  {},
		"old-tainted":  {Ready: true, Taints: []corev1.Taint{{Key: "example.org/gpu", Effect: "NoSchedule"}}},
		"old-cordoned": {Ready: true},
	} {
		if name == "old-unready" && !f.BornHeld() {
			continue // the agent cannot know that the node is not new
		}
		for _, network := range []string{"ready", "missing"} {
			spec.Name, spec.BootID, spec.PodCIDR = name+"-"+network, bootID(1), podCIDR
			_, err := apiserver.RegisterNode(t.Context(), f.Admin(), spec)
			require.NoError(t, err)
			if name == "old-cordoned" {
				f.patchNode(spec.Name, `{"spec":{"unschedulable":true}}`)
			}
			before := f.node(spec.Name)
			root := newHost(t, 1)
			if network == "ready" {
				installFlannel(t, root)
			}
			f.startAgent(spec.Name, root)
			f.waitFor(spec.Name, "observed", func(n *corev1.Node) bool {
				return n.Annotations[readiness.HoldAnnotation] != "" &&
					condition(n, readiness.NetworkHeld).Status == corev1.ConditionFalse
			})
			after := f.node(spec.Name)
			require.Equal(t, before.Spec, after.Spec, spec.Name)
			hasWritten := false
			for _, entry := range after.ManagedFields {
				if entry.Manager == readiness.FieldManager {
					hasWritten = true
					require.NotContains(t, entry.FieldsV1.GetRawString(), `"f:spec"`, spec.Name)
				}
			}
			require.True(t, hasWritten, "the agent's field manager is not in the managed fields")
		}
	}
}

// testReplacedCordon replaces Holdfast's cordon with the real kubectl while no agent runs.
func testReplacedCordon(t *testing.T, f fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	f.addNode(apiserver.NodeSpec{Name: "replaced", BootID: bootID(2)})
	for _, verb := range []string{"cordon", "uncordon", "cordon"} { // The first one writes nothing.
		f.kubectl(verb, "replaced")
	}
	root := newHost(t, 2)
	installFlannel(t, root)
	f.startAgent("replaced", root)
	f.waitFor("replaced", "overridden", func(n *corev1.Node) bool {
		return holdState(n) == readiness.Overridden &&
			condition(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
	})
	require.True(t, f.node("replaced").Spec.Unschedulable, "the agent removed the cordon of a person")

	f.addNode(apiserver.NodeSpec{Name: "not-replaced", BootID: bootID(2)})
	f.kubectl("cordon", "not-replaced")
	f.startAgent("not-replaced", root)
	f.waitFor("not-replaced", "released", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
}

// testReleasedByHand releases a node by hand while no agent runs (README). The agent that
// starts later accepts it.
func testReleasedByHand(t *testing.T, f fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	f.addNode(apiserver.NodeSpec{Name: "by-hand", BootID: bootID(3)})
	f.patchNode("by-hand", `{"spec":{"unschedulable":false}}`)
	cleared := []byte(`{"status":{"conditions":[
		{"type":"NetworkUnavailable","status":"False","reason":"ReleasedByHand","message":""}]}}`)
	nodes := f.Client().CoreV1().Nodes()
	_, err := nodes.Patch(t.Context(), "by-hand", types.StrategicMergePatchType, cleared, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	f.startAgent("by-hand", newHost(t, 3))
	// The marks stay until the agent has searched the host for etcd, which can be a
	// moment later.
	f.waitFor("by-hand", "overridden, without marks", func(n *corev1.Node) bool {
		return holdState(n) == readiness.Overridden && n.Annotations[autoscaler.ClusterAutoscaler] == ""
	})
	n := f.node("by-hand")
	require.False(t, n.Spec.Unschedulable)
	require.Equal(t, "ReleasedByHand", condition(n, corev1.NodeNetworkUnavailable).Reason)
}

// testEndpointAndLabel holds a node until a server on it answers and Ansible has labelled it.
func testEndpointAndLabel(t *testing.T, f fixture) {
	var status, requests atomic.Int64
	status.Store(http.StatusServiceUnavailable)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(server.Close)
	gate := "http:" + strings.TrimPrefix(server.URL, "http://") + "/healthz"
	f.addNode(apiserver.NodeSpec{Name: "probed", BootID: bootID(5)})
	root := newHost(t, 5)
	installFlannel(t, root)
	f.startAgent("probed", root, "--gates="+gate+",label:example.org/built-by=kubespray")
	waitFor := func(reason, message string) {
		f.waitFor("probed", message, func(n *corev1.Node) bool {
			c := condition(n, readiness.NetworkHeld)
			return c.Reason == reason && strings.Contains(c.Message, message) && n.Spec.Unschedulable
		})
	}
	waitFor(readiness.WaitingForLabel, "label example.org/built-by=kubespray of the node, which is not set")
	waitFor(readiness.WaitingForLabel, gate+" to answer with a 2xx status: it answers 503 Service Unavailable, since ")
	f.patchNode("probed", `{"metadata":{"labels":{"example.org/built-by":"kubespray"}}}`)
	waitFor(readiness.WaitingForProbe, "waiting for "+gate)
	status.Store(http.StatusOK)
	f.waitFor("probed", "released", isReleasedNode)
	last := int64(-1) // A probe may have been under way.
	require.Eventually(t, func() bool {
		before := last
		last = requests.Load()
		return last == before
	}, soon, 3*time.Second, "a released node is not probed")
}

// testHoldOfEtcdNode checks that a Node with a hold and a member keeps its mark for
// autoscalers in every version when the hold ends, because both need the mark.
func testHoldOfEtcdNode(t *testing.T, f fixture) {
	apiserver.RequireBornHeld(t, f.Server)
	const mark = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	etcd := etcd.New(t, etcd.Options{TLS: true, BootID: bootID, Node: func(int) string { return "held-etcd" }})
	m := etcd.Member(1)
	f.addNode(apiserver.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(1)})
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + m.Node}
	events, err := f.Client().CoreV1().Nodes().Watch(t.Context(), options)
	require.NoError(t, err)
	defer events.Stop()
	f.startAgent(m.Node, m.Root)
	hasNetwork := false
	timeout := time.After(soon)
	for {
		select {
		case e := <-events.ResultChan():
			n, ok := e.Object.(*corev1.Node)
			require.True(t, ok)
			require.Equal(t, "true", n.Annotations[mark], "%v", n.Annotations)
			if n.Labels[observation.EtcdMemberLabel] == "true" && !hasNetwork {
				hasNetwork = true
				installFlannel(t, m.Root)
			}
			if !n.Spec.Unschedulable {
				marks := strings.Split(n.Annotations[presence.MarksAnnotation], ",")
				require.Contains(t, marks, mark, "the member does not own the mark")
				return
			}
		case <-timeout:
			require.Fail(t, "the node was not released", "%+v", f.node(m.Node))
		}
	}
}

// testWithoutPolicy follows the manifests without the component born-held, as before Kubernetes
// 1.36: kubelets register with a taint, or the agent alone holds nodes that are not Ready yet.
func testWithoutPolicy(t *testing.T, f fixture) {
	if f.BornHeld() {
		configMaps := f.Client().CoreV1().ConfigMaps("holdfast-system")
		require.NoError(t, configMaps.Delete(t.Context(), "holdfast-born-held", metav1.DeleteOptions{}))
	}
	own := corev1.Taint{Key: "holdfast.dev/held", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		spec  apiserver.NodeSpec
		flags []string
	}{
		"registers-with-taint": {
			apiserver.NodeSpec{Taints: []corev1.Taint{own}, Ready: true, BootID: bootID(4)},
			[]string{"--hold-unrecorded", "--hold-mode=taint", "--hold-taint-key=" + own.Key},
		},
		"registers-without-taint": {apiserver.NodeSpec{BootID: bootID(4)}, []string{"--hold-unrecorded"}},
	} {
		test.spec.Name = name
		// Until the API server has observed that the parameter is gone, a new node is
		// born held.
		require.Eventually(t, func() bool {
			n := f.addNode(test.spec)
			if n.Annotations[readiness.HoldAnnotation] != "" {
				require.NoError(t, f.Client().CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			return n.Annotations[readiness.HoldAnnotation] == ""
		}, soon, 20*time.Millisecond)
		root := newHost(t, 4)
		f.startAgent(name, root, test.flags...)
		isClosed := func(n *corev1.Node) bool {
			isTainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == own.Key })
			return isTainted || n.Spec.Unschedulable
		}
		f.waitFor(name, "held", func(n *corev1.Node) bool { return holdState(n) == readiness.Held && isClosed(n) })
		installFlannel(t, root)
		f.waitFor(name, "released", func(n *corev1.Node) bool {
			return !isClosed(n) && condition(n, corev1.NodeNetworkUnavailable).Status != corev1.ConditionTrue
		})
	}
}
