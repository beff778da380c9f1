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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// scenarioFalseObservations plays an attacker with root on a worker. The attacker stops the agent
// and claims a member. While a member is down, the attacker publishes observations that it is
// healthy, and then sends reviews to the webhook in place of the API server.
func scenarioFalseObservations(t *testing.T, c *kindCluster) {
	worker, stopped, target := c.worker(4), c.worker(3), c.worker(1)
	original := c.observation(t, c.etcdCluster(t), c.worker(3))
	c.runOn(t, stopped, "systemctl stop etcd")
	forged := original
	forged.Node, forged.NodeUID = worker, c.node(t, worker).UID
	attacker := c.stolenAgentClient(t, worker)
	c.runOn(t, worker, "pkill -STOP -x holdfast-agent") // It would withdraw the claim.
	claim := fmt.Sprintf(`[{"cluster":%q,"member":%q}]`, c.etcdCluster(t).Name, original.LocalMember)
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q},"labels":{%q:"true"}}}`,
		observation.AnnouncementAnnotation, claim, observation.EtcdMemberLabel)
	_, err := attacker.CoreV1().Nodes().Patch(t.Context(), worker, types.MergePatchType, body, metav1.PatchOptions{})
	require.NoError(t, err)

	attacking, stop := context.WithCancel(t.Context())
	defer stop()
	published := 0
	group, ctx := errgroup.WithContext(attacking)
	group.Go(func() (err error) {
		published, err = c.answerNonces(ctx, attacker, forged)
		return err
	})
	isForged := func(o v1alpha1.Observation) bool { return o.Node == worker }
	c.waitFor(t, "the false observation to appear", shortTimeout, func(ctx context.Context) (bool, string) {
		found, text, err := c.findEtcdCluster(ctx)
		return err == nil && slices.ContainsFunc(found.Observations, isForged), text
	})
	for range 3 {
		c.waitForRefusal(t, []string{
			oneOfThreeHealthy,
			`etcd3 \([0-9a-f]+\) on node ` + stopped + `: not confirmed healthy: `,
		}, "delete", "node", target)
	}
	stop()
	require.NoError(t, group.Wait())
	require.GreaterOrEqual(t, published, 3, "the attacker must answer the nonces")
	t.Logf("%d false observations were published", published)
	c.runOn(t, worker, "pkill -CONT -x holdfast-agent")
	c.waitFor(t, "the false observation to go", longTimeout, func(ctx context.Context) (bool, string) {
		found, text, err := c.findEtcdCluster(ctx)
		return err == nil && !slices.ContainsFunc(found.Observations, isForged), text
	})
	c.runOn(t, stopped, "systemctl start etcd")
	c.waitForHealthy(t, 3)
	c.sendForgedReviews(t, worker, target)
}

// observation returns the observation of a node's agent.
func (c *kindCluster) observation(t *testing.T, of *v1alpha1.EtcdCluster, node string) v1alpha1.Observation {
	t.Helper()
	for _, o := range of.Observations {
		if o.Node == node {
			return o
		}
	}
	require.FailNow(t, "no observation of node "+node, pretty(of))
	return v1alpha1.Observation{}
}

// answerNonces publishes a false observation for every nonce until the context ends, sooner
// than the agents, which have to probe first. It returns the number of observations.
func (c *kindCluster) answerNonces(
	ctx context.Context, as *kubernetes.Clientset, forged v1alpha1.Observation,
) (published int, err error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		found, _, err := c.findEtcdCluster(ctx)
		if err == nil && found.Spec.Nonce != forged.Nonce {
			next := forged
			next.Nonce, next.Time = found.Spec.Nonce, metav1.Now()
			err = c.publishObservation(ctx, as, found.Name, next)
			switch {
			case err == nil:
				forged = next
				published++
			case ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
				return published, err // Until the leader has created the object, it is not found.
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return published, nil
}

// publishObservation publishes an observation like an agent.
func (c *kindCluster) publishObservation(
	ctx context.Context, as *kubernetes.Clientset, cluster string, o v1alpha1.Observation,
) error {
	path := observationPath + "/" + v1alpha1.ObservationName(v1alpha1.ClusterID(cluster), o.Node)
	out, err := as.RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return err
	}
	object := &v1alpha1.EtcdObservation{}
	if err := json.Unmarshal(out, object); err != nil {
		return err
	}
	object.Observation = o
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return as.RESTClient().Put().AbsPath(path).Body(body).Do(ctx).Error()
}

// sendForgedReviews sends reviews of a node's deletion from a pod to the webhook, in place of
// the API server. They can make Holdfast refuse more, but never allow more (pitfalls F14 of the
// design): an allowed deletion counts as lost.
func (c *kindCluster) sendForgedReviews(t *testing.T, from, about string) {
	t.Helper()
	c.deploy(t, "forger", from, 1)
	c.waitForRollout(t, "default", "deployment/forger")
	pod := c.kubectl(t, "get", "pods", "-l", "app=forger", "-o", "jsonpath={.items[0].metadata.name}")
	service := c.kubectl(t, "-n", namespace, "get", "service", "holdfast-webhook", "-o",
		"jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	n := c.node(t, about)
	send := func(uid types.UID) string {
		old, err := json.Marshal(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: n.Name, UID: uid, ResourceVersion: n.ResourceVersion, Labels: n.Labels, Annotations: n.Annotations,
			},
			Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
		})
		require.NoError(t, err)
		review, err := json.Marshal(admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: "forged", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Node"},
				Resource: metav1.GroupVersionResource{Version: "v1", Resource: "nodes"},
				Name:     n.Name, Operation: admissionv1.Delete, OldObject: runtime.RawExtension{Raw: old},
				UserInfo: authenticationv1.UserInfo{Username: "kubernetes-admin"},
			},
		})
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "forged.json")
		require.NoError(t, os.WriteFile(file, review, 0o600))
		return c.kubectl(t, "create", "-f", file, "--raw",
			"/api/v1/namespaces/default/pods/"+pod+":8080/proxy/?post=https://"+service+"/validate-etcd-node")
	}
	require.Contains(t, send("00000000-0000-4000-8000-000000000000"), `"allowed":false`, "the Node does not exist")
	require.Empty(t, c.etcdCluster(t).Spec.Grants)

	c.waitFor(t, "a forged review to be allowed", shortTimeout, func(context.Context) (bool, string) {
		answer := send(n.UID)
		return strings.Contains(answer, `"allowed":true`), answer
	})
	require.Equal(t, n.UID, c.node(t, about).UID, "a forged review must delete nothing")
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 1)
	require.Equal(t, about, grants[0].Node)
	c.waitForRefusal(t,
		[]string{fmt.Sprintf("counts as lost: the deletion of its node %s by kubernetes-admin was allowed",
			about)}, "delete", "node", c.worker(2))
	c.kubectl(t, "delete", "deployment", "forger")
	// A grant allows the deletion of one version of a Node, so a write ends it.
	c.kubectl(t, "annotate", "node", about, "example.org/written-after-the-review=true")
}
