//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// lies has whoever broke into a worker say that all is well while a member is down, in answer to every question, and then
// put questions to the webhook in the API server's place.
func lies(t *testing.T, c *cluster) {
	liar, stopped, asked := c.worker(4), c.worker(3), c.worker(1)
	honest := c.observation(t, c.etcdCluster(t), c.worker(3))
	c.on(t, stopped, "systemctl stop etcd")
	lie := honest
	lie.Node, lie.NodeUID = liar, c.node(t, liar).UID
	thief := c.stolen(t, liar)

	lying, stop := context.WithCancel(t.Context())
	defer stop()
	told := 0
	group, ctx := errgroup.WithContext(lying)
	group.Go(func() (err error) {
		told, err = c.answer(ctx, thief, lie)
		return err
	})
	c.eventually(t, "the lie stands beside the truth", soon, func(ctx context.Context) (bool, string) {
		found, text, err := c.ours(ctx)
		return err == nil && slices.ContainsFunc(found.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == liar }), text
	})
	for range 3 {
		c.denied(t, []string{
			"of 3 voters 2 must live, and only 1 would be left that is proven healthy",
			`etcd3 \([0-9a-f]+\) on node ` + stopped + `: not proven healthy: `,
		}, "delete", "node", asked)
	}
	stop()
	require.NoError(t, group.Wait())
	require.GreaterOrEqual(t, told, 3, "the questions were answered")
	t.Logf("%d lies were told", told)
	_, err := c.tell(t.Context(), thief, c.etcdCluster(t).Name, nil)
	require.NoError(t, err)
	c.on(t, stopped, "systemctl start etcd")
	c.healthy(t, 3)
	c.forged(t, liar, asked)
}

// observation is what a node's agent has published about a cluster.
func (c *cluster) observation(t *testing.T, of *v1alpha1.EtcdCluster, node string) v1alpha1.Observation {
	t.Helper()
	for _, o := range of.Status.Observations {
		if o.Node == node {
			return o
		}
	}
	require.FailNow(t, "there is no observation of node "+node, pretty(of))
	return v1alpha1.Observation{}
}

// answer tells a lie in answer to every question, sooner than the agents that have to look first, until the context ends.
// It returns how many were told.
func (c *cluster) answer(ctx context.Context, as *kubernetes.Clientset, lie v1alpha1.Observation) (told int, err error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		found, _, err := c.ours(ctx)
		if err != nil {
			continue
		}
		retired := !slices.ContainsFunc(found.Status.Observations, func(o v1alpha1.Observation) bool { return o.Node == lie.Node })
		if found.Spec.Nonce != lie.Nonce || retired { // its own agent takes the lie back
			lie.Nonce, lie.Time = found.Spec.Nonce, metav1.Now()
			if refused, err := c.tell(ctx, as, found.Name, &lie); err != nil && !refused {
				return told, err
			}
			told++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return told, nil
}

// tell publishes as an agent does, nil to take back what was published. It says whether it failed for the end of
// the context alone.
func (c *cluster) tell(ctx context.Context, as *kubernetes.Clientset, cluster string, o *v1alpha1.Observation) (interrupted bool, err error) {
	status := map[string]any{}
	if o != nil {
		status["observations"] = []v1alpha1.Observation{*o}
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "EtcdCluster", "metadata": map[string]any{"name": cluster}, "status": status,
	})
	if err != nil {
		return false, err
	}
	err = as.RESTClient().Patch(types.ApplyPatchType).AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters/"+cluster+"/status").
		Param("fieldManager", "thief").Param("force", "true").Body(body).Do(ctx).Error()
	return ctx.Err() != nil, err
}

// forged asks the webhook from a pod, in the API server's place, about the deletion of a node. That can make Holdfast
// refuse more than it should, never allow more (pitfalls F14 of the design): what it allowed counts as given up.
func (c *cluster) forged(t *testing.T, from, about string) {
	t.Helper()
	c.deploy(t, "forger", from, 1)
	c.rolledOut(t, "default", "deployment/forger")
	pod := c.kubectl(t, "get", "pods", "-l", "app=forger", "-o", "jsonpath={.items[0].metadata.name}")
	service := c.kubectl(t, "-n", namespace, "get", "service", "holdfast-webhook", "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	n := c.node(t, about)
	ask := func(uid types.UID) string {
		old, err := json.Marshal(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: uid, Labels: n.Labels, Annotations: n.Annotations}, Status: corev1.NodeStatus{Addresses: n.Status.Addresses}})
		require.NoError(t, err)
		review, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: "forged", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Node"}, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
				Name: n.Name, Operation: admissionv1.Delete, OldObject: runtime.RawExtension{Raw: old},
				UserInfo: authenticationv1.UserInfo{Username: "kubernetes-admin"},
			},
		})
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "forged.json")
		require.NoError(t, os.WriteFile(file, review, 0o600))
		return c.kubectl(t, "create", "--raw", "/api/v1/namespaces/default/pods/"+pod+":8080/proxy/?post=https://"+service+"/validate-etcd-node", "-f", file)
	}
	require.Contains(t, ask("00000000-0000-4000-8000-000000000000"), `"allowed":false`, "a Node that is not there")
	require.Empty(t, c.etcdCluster(t).Spec.Grants)

	c.eventually(t, "a forged question is answered with yes", soon, func(context.Context) (bool, string) {
		answer := ask(n.UID)
		return strings.Contains(answer, `"allowed":true`), answer
	})
	require.Equal(t, n.UID, c.node(t, about).UID, "nothing was deleted")
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 1)
	require.Equal(t, about, grants[0].Node)
	c.denied(t, []string{fmt.Sprintf("given up: the deletion of its node %s was allowed to kubernetes-admin", about)}, "delete", "node", c.worker(2))
	c.settle(t)
	c.healthy(t, 3)
	c.kubectl(t, "delete", "deployment", "forger")
}
