package guardpods

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// TestPendingCopy has a copy of a guard pod that no scheduler has placed, for example from a
// backup. It must not keep the other guard pods from being created.
func TestPendingCopy(t *testing.T) {
	f := newFixture(t)
	n0, n1 := f.addEtcdNode(t, "etcd-0"), f.addEtcdNode(t, "etcd-1")
	f.addCluster(t, n0, n1)
	f.start(t, nil)
	first := f.waitForPod(t, "etcd-0", "")
	f.waitForPod(t, "etcd-1", "")
	restored := first.DeepCopy()
	restored.ObjectMeta = metav1.ObjectMeta{Name: guard.Name("old-node"), Labels: first.Labels}
	restored.Spec.NodeName = ""
	_, err := f.admin.Create(t.Context(), restored, metav1.CreateOptions{})
	require.NoError(t, err)
	f.stays(t, "etcd-0", first.UID)
	require.NoError(t, f.admin.Delete(t.Context(), first.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	f.waitForPod(t, "etcd-0", first.UID)
}

// TestUnlabelledNamesake has a pod on another node, with the name of a guard pod and without the
// label by which the cache selects.
func TestUnlabelledNamesake(t *testing.T) {
	f := newFixture(t)
	n0, n1 := f.addEtcdNode(t, "etcd-0"), f.addEtcdNode(t, "etcd-1")
	_, err := f.admin.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: guard.Name("etcd-0")},
		Spec: corev1.PodSpec{
			NodeName: "etcd-1", ServiceAccountName: "holdfast-agent", Containers: []corev1.Container{{Name: "c", Image: "x"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	f.addCluster(t, n0, n1)
	f.start(t, nil)
	f.waitForPod(t, "etcd-1", "")
	require.Eventually(t, func() bool {
		p := f.pod(t, "etcd-0")
		return p != nil && p.Spec.NodeName == "etcd-0"
	}, soon, poll)
}
