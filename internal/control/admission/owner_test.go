package admission

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// ownedNodes returns two etcd nodes and a worker, all of Cluster capi/prod. Control plane capi/cp
// owns the etcd nodes.
func ownedNodes() []corev1.Node {
	var nodes []corev1.Node
	for i, name := range []string{"n1", "n2", "w1"} {
		node := machineNode(name, fmt.Sprintf("cloud:///%d", i))
		node.Annotations["cluster.x-k8s.io/cluster-namespace"] = "capi"
		node.Annotations["cluster.x-k8s.io/cluster-name"] = "prod"
		node.Annotations["cluster.x-k8s.io/owner-kind"] = "KubeadmControlPlane"
		node.Annotations["cluster.x-k8s.io/owner-name"] = "cp"
		nodes = append(nodes, node)
	}
	delete(nodes[2].Labels, observation.EtcdMemberLabel)
	nodes[2].Annotations["cluster.x-k8s.io/owner-name"] = "workers"
	return nodes
}

func TestOwnersOfMachines(t *testing.T) {
	const group, kubeadm = "controlplane.cluster.x-k8s.io", "KubeadmControlPlane"
	lost := quorum.Decision{Reason: quorum.QuorumWouldBeLost, Message: "1 of 3 would stay"}
	for name, c := range map[string]struct {
		group, kind, name string
		nodes             func([]corev1.Node)
		decision          quorum.Decision
		err, cacheErr     error
		code              int32
		message           string
		reviewed          []string
	}{
		"Cluster": {
			"cluster.x-k8s.io", "Cluster", "prod", nil, lost, nil, nil, 403,
			"deleting Cluster capi/prod would end all of its machines\n1 of 3 would stay\nWhat helps:",
			[]string{"n1", "n2"},
		},
		"control plane": {
			group, kubeadm, "cp", nil, lost, nil, nil, 403,
			"KubeadmControlPlane capi/cp",
			[]string{"n1", "n2"},
		},
		"other control plane": {
			group, kubeadm, "cp2", nil, lost, nil, nil, 200, "KubeadmControlPlane capi/cp2 has no node with etcd", nil,
		},
		"kept": {
			group, kubeadm, "cp", nil,
			quorum.Decision{Allowed: true, Reason: quorum.QuorumKept, Message: "3 of 5 stay"},
			nil, nil, 200, "3 of 5 stay",
			[]string{"n1", "n2"},
		},
		"break-glass on one node": {group, kubeadm, "cp", func(nodes []corev1.Node) {
			nodes[0].Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
		}, lost, nil, nil, 403, "1 of 3", []string{"n1", "n2"}},
		"break-glass on each node": {group, kubeadm, "cp", func(nodes []corev1.Node) {
			nodes[0].Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
			nodes[1].Annotations[quorum.BreakGlassAnnotation] = breakGlassOf("uid-1")
		}, lost, nil, nil, 200, "a break-glass override is in effect for each node with etcd", nil},
		"announcement that cannot be parsed": {"cluster.x-k8s.io", "Cluster", "prod", func(nodes []corev1.Node) {
			nodes[1].Annotations[observation.AnnouncementAnnotation] = "["
		}, lost, nil, nil, 503, `the etcd members that node "n2" announces cannot be read`, nil},
		"error": {
			group, kubeadm, "cp", nil,
			quorum.Decision{},
			errors.New("timeout"), nil, 503,
			"Holdfast cannot decide whether KubeadmControlPlane capi/cp may be deleted: timeout",
			[]string{"n1", "n2"},
		},
		"Nodes are not known": {
			group, kubeadm, "cp", nil, lost, nil, errors.New("not filled"), 200, "", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.live, f.cached, f.cacheErr = nil, ownedNodes(), c.cacheErr
			if c.nodes != nil {
				c.nodes(f.cached)
			}
			var reviewed []string
			together := func(_ context.Context, requests []quorum.Request) (quorum.Decision, error) {
				for _, r := range requests {
					require.True(t, r.Labelled)
					reviewed = append(reviewed, r.Node)
				}
				return c.decision, c.err
			}
			f.handler.Reviewer = fakeReviewer{together: together}
			object := fmt.Sprintf(`{"metadata":{"namespace":"capi","name":%q,"uid":"u"}}`, c.name)
			got := f.post(MachinePath, machineReview(c.kind, object, func(r *admissionv1.AdmissionRequest) {
				r.Kind.Group, r.Name = c.group, c.name
			}))
			require.Equal(t, c.code, got.Result.Code, got.Result.Message)
			require.Equal(t, c.code == 200, got.Allowed)
			require.Contains(t, got.Result.Message, c.message)
			require.Equal(t, c.reviewed, reviewed)
		})
	}
}
