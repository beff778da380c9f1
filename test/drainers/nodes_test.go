//go:build drainers

package drainers

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// completeNode writes what the kubelet of a node writes, and the basic files of its host.
func (r *rig) completeNode(name, ip string) {
	r.t.Helper()
	require.NoError(r.t, r.WriteHostFile(name, "etc/hostname", name+"\n", 0o644))
	boot, err := os.ReadFile(filepath.Join(r.HostRoot(name), hosttest.BootIDFile))
	require.NoError(r.t, err)
	r.wait("the status of node "+name, func(ctx context.Context) error {
		node, err := r.core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}
		node.Status.NodeInfo.BootID = strings.TrimSpace(string(boot))
		node.Status.NodeInfo.SystemUUID, node.Status.NodeInfo.OperatingSystem = node.Status.NodeInfo.BootID, "linux"
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady
		})
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
		_, err = r.core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// runKubelets removes pods that are being deleted, as the kubelet of their node does when their
// containers have ended.
func (r *rig) runKubelets() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.t.Context()))
	var kubelets sync.WaitGroup
	kubelets.Go(func() {
		for fixture.Wait(ctx, kubeletInterval) == nil {
			pods, err := r.core.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				if p.DeletionTimestamp != nil {
					options := metav1.DeleteOptions{
						GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
					}
					_ = r.core.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, options) // retried
				}
			}
		}
	})
	r.t.Cleanup(func() { cancel(); kubelets.Wait() })
}

// startWorkload creates an ordinary pod on a node.
func (r *rig) startWorkload(node string) {
	r.t.Helper()
	r.createPod(namespace, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "workload-on-" + node},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "example.org/workload"}},
		},
	})
}

// createPod creates a pod as soon as its service account exists.
func (r *rig) createPod(namespace string, pod *corev1.Pod) {
	r.t.Helper()
	r.wait("pod "+pod.Name, func(ctx context.Context) error {
		_, err := r.core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// isGone reports whether a Node does not exist any more.
func (r *rig) isGone(ctx context.Context, node string) (bool, error) {
	_, err := r.core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// endMachine ends the machine of a member: its etcd and its agent.
func (r *rig) endMachine(member int) error {
	m := r.etcd.Member(member)
	return errors.Join(m.Kill(), r.ReplaceMachine(m.Node))
}

// replaceMember removes a member whose machine has ended from etcd, and adds one on a node.
func (r *rig) replaceMember(old int, node string) {
	r.t.Helper()
	ctx := r.t.Context()
	require.NoError(r.t, r.etcd.RemoveMember(ctx, r.etcd.Member(old)))
	r.addNode(node)
	made, err := r.etcd.AddLearner(ctx)
	require.NoError(r.t, err)
	require.NoError(r.t, r.etcd.Promote(ctx, made))
}
