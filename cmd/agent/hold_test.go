package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// TestHolds has one API server for holds whose beginning is not the policy's.
func TestHolds(t *testing.T) {
	s := startSite(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, site)
	}{
		{"the fleet that was there keeps its spec", theFleetKeepsItsSpec},
		{"somebody opens a held node and closes it while no agent looks", somebodyReplacesTheCordon},
		{"a node is uncordoned by hand in both subresources", uncordonedInBothSubresources},
		{"an etcd node keeps its marks when the hold goes", anEtcdNodeKeepsItsMarks},
		{"without the policy", withoutThePolicy}, // the last: it takes the parameter away
	} {
		t.Run(part.name, func(t *testing.T) { s := s; s.t = t; part.run(t, s) })
	}
}

// bare makes a host that has booted, with nothing on it.
func (s site) bare(boot int) string {
	root := s.t.TempDir()
	put(s.t, root, "/proc/sys/kernel/random/boot_id", bootID(boot)+"\n", 0o444)
	return root
}

// theFleetKeepsItsSpec: Nodes that were there before Holdfast, in any state. The API server's own book-keeping shows that
// the agent has written nothing of their spec.
func theFleetKeepsItsSpec(t *testing.T, s site) {
	for name, spec := range map[string]testenv.NodeSpec{
		"old-serving":  {Ready: true},
		"old-unready":  {},
		"old-tainted":  {Ready: true, Taints: []corev1.Taint{{Key: "example.org/gpu", Effect: "NoSchedule"}}},
		"old-cordoned": {Ready: true},
	} {
		for state, prepare := range map[string]func(string){"works": func(root string) { flannel(t, root) }, "waits": func(string) {}} {
			spec.Name, spec.BootID = name+"-"+state, bootID(1)
			_, err := testenv.RegisterNode(t.Context(), s.Admin(), spec)
			require.NoError(t, err)
			if name == "old-cordoned" {
				_, err := s.Kubectl(t.Context(), "cordon", spec.Name)
				require.NoError(t, err)
			}
			before := s.node(spec.Name)
			root := s.bare(1)
			prepare(root)
			s.run(spec.Name, root)
			s.until(spec.Name, "seen", func(n *corev1.Node) bool {
				return n.Annotations[readiness.HoldAnnotation] != "" && is(n, readiness.NetworkHeld).Status == corev1.ConditionFalse
			})
			after := s.node(spec.Name)
			require.Equal(t, before.Spec, after.Spec, spec.Name)
			wrote := false
			for _, entry := range after.ManagedFields {
				if entry.Manager == readiness.FieldManager {
					wrote = true
					require.NotContains(t, entry.FieldsV1.GetRawString(), `"f:spec"`, spec.Name)
				}
			}
			require.True(t, wrote, "the agent is known by its name")
		}
	}
}

// somebodyReplacesTheCordon with the real kubectl, while the agent's image cannot be pulled, say.
func somebodyReplacesTheCordon(t *testing.T, s site) {
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "replaced", BootID: bootID(2)})
	require.NoError(t, err)
	for _, verb := range []string{"cordon", "uncordon", "cordon"} { // the first writes nothing
		_, err = s.Kubectl(t.Context(), verb, "replaced")
		require.NoError(t, err)
	}
	root := s.bare(2)
	flannel(t, root)
	s.run("replaced", root)
	s.until("replaced", "known as somebody's", func(n *corev1.Node) bool {
		r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
		return err == nil && r.State == readiness.Overridden && is(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
	})
	require.True(t, s.node("replaced").Spec.Unschedulable, "it is not the agent's to lift")

	_, _, err = s.AddNode(t.Context(), testenv.NodeSpec{Name: "not-replaced", BootID: bootID(2)})
	require.NoError(t, err)
	_, err = s.Kubectl(t.Context(), "cordon", "not-replaced")
	require.NoError(t, err)
	s.run("not-replaced", root)
	s.until("not-replaced", "released", func(n *corev1.Node) bool { return !n.Spec.Unschedulable })
}

// uncordonedInBothSubresources is the release by hand where no agent runs (README). The agent that comes later agrees.
func uncordonedInBothSubresources(t *testing.T, s site) {
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: "by-hand", BootID: bootID(3)})
	require.NoError(t, err)
	_, err = s.Kubectl(t.Context(), "uncordon", "by-hand")
	require.NoError(t, err)
	cleared := []byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"ReleasedByHand","message":""}]}}`)
	_, err = s.Client().CoreV1().Nodes().Patch(t.Context(), "by-hand", types.StrategicMergePatchType, cleared, metav1.PatchOptions{}, "status")
	require.NoError(t, err)
	s.run("by-hand", s.bare(3))
	// The marks stay until the host has been looked at for etcd, which may be a moment later.
	s.until("by-hand", "recorded, and without the marks of the hold", func(n *corev1.Node) bool {
		r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
		return err == nil && r.State == readiness.Overridden && n.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] == ""
	})
	n := s.node("by-hand")
	require.False(t, n.Spec.Unschedulable)
	require.Equal(t, "ReleasedByHand", is(n, corev1.NodeNetworkUnavailable).Reason)
}

// anEtcdNodeKeepsItsMarks: a hold and a member both want autoscalers to leave the node alone. When the hold goes, no
// instant is without the mark.
func anEtcdNodeKeepsItsMarks(t *testing.T, s site) {
	const mark = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 1, TLS: true, BootID: bootID})
	m := etcd.Member(1)
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(1)})
	require.NoError(t, err)
	events, err := s.Client().CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + m.Node})
	require.NoError(t, err)
	defer events.Stop()
	s.run(m.Node, m.Root)
	flannelled := false
	end := time.After(soon)
	for {
		select {
		case e := <-events.ResultChan():
			n, ok := e.Object.(*corev1.Node)
			require.True(t, ok)
			require.Equal(t, "true", n.Annotations[mark], "%v", n.Annotations)
			if n.Labels["holdfast.dev/etcd-member"] == "true" && !flannelled {
				flannelled = true
				flannel(t, m.Root)
			}
			if !n.Spec.Unschedulable {
				require.Contains(t, strings.Split(n.Annotations["holdfast.dev/marks"], ","), mark, "from now on it stands for the member")
				return
			}
		case <-end:
			require.Fail(t, "it was not released", "%+v", s.node(m.Node))
		}
	}
}

// withoutThePolicy follows overlays/without-born-held, as on Kubernetes before 1.36: kubelets register with a taint, or the
// agent alone holds what is not Ready yet.
func withoutThePolicy(t *testing.T, s site) {
	require.NoError(t, s.Client().CoreV1().ConfigMaps("holdfast-system").Delete(t.Context(), "holdfast-born-held", metav1.DeleteOptions{}))
	own := corev1.Taint{Key: "holdfast.dev/held", Effect: corev1.TaintEffectNoSchedule}
	specs := map[string]testenv.NodeSpec{
		"registers-with-the-taint": {Taints: []corev1.Taint{own}, Ready: true, BootID: bootID(4)},
		"registers-without":        {BootID: bootID(4)},
	}
	flags := map[string][]string{
		"registers-with-the-taint": {"--hold-unrecorded", "--hold-mode=taint", "--hold-taint-key=" + own.Key},
		"registers-without":        {"--hold-unrecorded"},
	}
	for name, spec := range specs {
		spec.Name = name
		require.Eventually(t, func() bool { // until the API server has heard that the parameter is gone
			n, _, err := s.AddNode(t.Context(), spec)
			require.NoError(t, err)
			if n.Annotations[readiness.HoldAnnotation] != "" {
				require.NoError(t, s.Client().CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
			}
			return n.Annotations[readiness.HoldAnnotation] == ""
		}, soon, 20*time.Millisecond)
		root := s.bare(4)
		s.run(name, root, flags[name]...)
		closed := func(n *corev1.Node) bool {
			tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == own.Key })
			return tainted || n.Spec.Unschedulable
		}
		s.until(name, "held", func(n *corev1.Node) bool {
			r, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
			return err == nil && r.State == readiness.Held && closed(n)
		})
		flannel(t, root)
		s.until(name, "released", func(n *corev1.Node) bool {
			return !closed(n) && is(n, corev1.NodeNetworkUnavailable).Status != corev1.ConditionTrue
		})
	}
}
