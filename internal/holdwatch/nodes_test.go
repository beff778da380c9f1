package holdwatch

import (
	"context"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/nodepatch"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// born registers a Node as its kubelet does, so that the shipped policy holds it. It goes when the test ends.
func (s *site) born(name string) *corev1.Node {
	s.t.Helper()
	node, _, err := s.AddNode(s.t.Context(), testenv.NodeSpec{Name: name, Ready: true})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { s.remove(name) })
	return node
}

func (s *site) remove(name string) {
	err := s.Client().CoreV1().Nodes().Delete(context.WithoutCancel(s.t.Context()), name, metav1.DeleteOptions{})
	require.True(s.t, err == nil || apierrors.IsNotFound(err), err)
}

func (s *site) node(name string) *corev1.Node {
	s.t.Helper()
	node, err := s.Client().CoreV1().Nodes().Get(s.t.Context(), name, metav1.GetOptions{})
	require.NoError(s.t, err)
	return node
}

// agent plays a few passes of the agent of a node, with the agent's own rights: it finds the gates open or closed.
func (s *site) agent(name string, open bool) *corev1.Node {
	s.t.Helper()
	facts := readiness.Facts{Conflist: readiness.Conflist{Presence: readiness.Absent, Directory: "/etc/cni/net.d"}}
	if open {
		facts.Conflist = readiness.Conflist{
			Presence: readiness.Present, Path: "/etc/cni/net.d/10.conflist", Name: "x",
			Plugins: []readiness.Plugin{{Type: "ptp", Executable: readiness.Present}},
		}
	}
	return s.agentSees(name, facts)
}

func (s *site) agentSees(name string, facts readiness.Facts) *corev1.Node {
	s.t.Helper()
	config, err := s.ServiceAccountConfig(s.t.Context(), namespace, "holdfast-agent", name)
	require.NoError(s.t, err)
	core, err := kubernetes.NewForConfig(config)
	require.NoError(s.t, err)
	node := s.node(name)
	facts.BootID = node.Status.NodeInfo.BootID
	for range 3 {
		d := readiness.Decide(node, facts, readiness.Policy{}, time.Now())
		node, err = nodepatch.NewWriter(core.CoreV1().Nodes()).Apply(s.t.Context(), node, desired(d))
		require.NoError(s.t, err)
	}
	return node
}

// goDown has the agent hold its node on the host's way down, and boot has the kubelet report the boot that follows.
func (s *site) goDown(name string) {
	s.t.Helper()
	down := s.agentSees(name, readiness.Facts{GoingDown: true})
	require.Equal(s.t, readiness.GoingDown, record(s.t, down).Reason)
}

func (s *site) boot(name, id string) {
	s.t.Helper()
	_, err := s.Kubectl(s.t.Context(), "patch", "node", name, "--subresource=status", "-p", `{"status":{"nodeInfo":{"bootID":"`+id+`"}}}`)
	require.NoError(s.t, err)
}
