//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// scenarioPartition isolates an etcd host from the network. A member that cannot be observed
// does not count as healthy, and the refusal names it.
func scenarioPartition(t *testing.T, c *kindCluster) {
	isolated, target := c.worker(2), c.worker(1)
	c.waitForHealthy(t, 3)
	c.runOn(t, isolated, "iptables -I INPUT ! -i lo -j DROP; iptables -I OUTPUT ! -o lo -j DROP")
	defer c.runOn(t, isolated, "iptables -D INPUT ! -i lo -j DROP; iptables -D OUTPUT ! -o lo -j DROP")
	// A replica of the webhook may be on that host. Then the API server must detect that first.
	c.waitForRefusal(t, []string{
		oneOfThreeHealthy,
		`etcd2 \([0-9a-f]+\) on node ` + isolated +
			`: not confirmed healthy: .*the agent on its node has not answered since its report from 20`,
	}, "delete", "node", target)
	require.True(t, isMarked(c.node(t, isolated)))
}

// scenarioNoWebhook stops both replicas of the webhook. Nodes without etcd can be deleted,
// others cannot.
func scenarioNoWebhook(t *testing.T, c *kindCluster) {
	c.kubectl(t, "-n", namespace, "scale", "deployment/holdfast-webhook", "--replicas=0")
	c.kubectl(t, "-n", namespace, "delete", "pod", "-l", "app.kubernetes.io/name=holdfast-webhook", "--force",
		"--grace-period=0", "--ignore-not-found")
	c.waitFor(t, "the end of the webhook's processes", longTimeout, func(ctx context.Context) (bool, string) {
		for name := range c.nodes(t) {
			out, err := c.tryRun(ctx, "docker", "exec", name, "sh", "-c", "crictl ps --quiet --name ^webhook$ 2>/dev/null")
			if err != nil || strings.TrimSpace(out) != "" {
				return false, name + ": " + out // A replica that ends answers the requests that still reach it.
			}
		}
		return true, ""
	})
	require.Contains(t, c.kubectlFails(t, "delete", "node", c.worker(1)),
		`failed calling webhook "etcd-nodes.holdfast.dev"`)
	c.resetNode(t, c.worker(4))
	c.kubectl(t, "delete", "node", c.worker(4))

	c.kubectl(t, "-n", namespace, "scale", "deployment/holdfast-webhook", "--replicas=2")
	c.waitForWebhook(t)
	c.startKubelets(t, c.worker(4))
	c.waitForRelease(t, c.worker(4))
	c.deleteNode(t, longTimeout, c.worker(1), "--dry-run=server")
}

// scenarioRotation deletes the authority while Nodes are deleted continuously. The API
// server gets the new authority before a replica uses it, so no request fails.
func scenarioRotation(t *testing.T, c *kindCluster) {
	before := c.trustedCAs(t)
	done, finish := context.WithCancel(t.Context())
	defer finish()
	deleted := 0
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error {
		for ; done.Err() == nil; deleted++ {
			if err := c.deleteGhostNode(ctx, fmt.Sprintf("ghost-%d", deleted)); err != nil {
				return fmt.Errorf("request %d: %w", deleted, err)
			}
		}
		return nil
	})
	c.kubectl(t, "-n", namespace, "delete", "secret", "holdfast-webhook-tls")
	c.waitFor(t, "trust in the old and the new authority", longTimeout, func(context.Context) (bool, string) {
		now := c.trustedCAs(t)
		return len(now) == len(before)+1 && now[1] == before[0], fmt.Sprintf("%d authorities", len(now))
	})
	c.kubectl(t, "-n", namespace, "rollout", "restart", "deployment/holdfast-webhook")
	c.waitForRollout(t, namespace, "deployment/holdfast-webhook")
	c.waitFor(t, "the end of the replicas with the old certificate", longTimeout,
		func(ctx context.Context) (bool, string) {
			pods, err := c.client.CoreV1().Pods(namespace).List(ctx,
				metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast-webhook"})
			return err == nil && len(pods.Items) == 2, fmt.Sprintf("%d replicas, %v", len(pods.Items), err)
		})
	finish()
	require.NoError(t, group.Wait())
	secret, err := c.client.CoreV1().Secrets(namespace).Get(t.Context(), "holdfast-webhook-tls", metav1.GetOptions{})
	require.NoError(t, err)
	next := string(secret.Data["next-ca.crt"])
	require.NotEqual(t, before[0], next)
	require.Equal(t, next, c.trustedCAs(t)[0])
	require.NoError(t, c.deleteGhostNode(t.Context(), "ghost-last"), "the replicas have certificates of the new authority")
	t.Logf("deleted %d Nodes meanwhile", deleted)
	require.Greater(t, deleted, 10)
}

// deleteGhostNode creates a Node without a machine, with a break-glass override, and deletes
// it. The fail-closed webhook must allow that.
func (c *kindCluster) deleteGhostNode(ctx context.Context, name string) error {
	nodes := c.client.CoreV1().Nodes()
	labels := map[string]string{observation.EtcdMemberLabel: "true"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	made, err := nodes.Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	override := quorum.BreakGlass{UID: made.UID, Until: time.Now().UTC().Add(time.Hour), Reason: "an exercise"}
	value, err := json.Marshal(override)
	if err != nil {
		return err
	}
	annotations := map[string]string{quorum.BreakGlassAnnotation: string(value)}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return nodes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}})
}

// trustedCAs returns the CA certificates of the fail-closed webhook's configuration, in PEM,
// the current one first.
func (c *kindCluster) trustedCAs(t *testing.T) []string {
	t.Helper()
	configurations := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	config, err := configurations.Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	var found []string
	bundle := config.Webhooks[0].ClientConfig.CABundle
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		found = append(found, string(pem.EncodeToMemory(block)))
	}
	return found
}

// scenarioUpdate restarts all agents, as an update does, and checks every version of every Node
// meanwhile: only kubelets write their heartbeats.
func scenarioUpdate(t *testing.T, c *kindCluster) {
	c.waitForHealthy(t, 3)
	list, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	before := map[string]corev1.Node{}
	for _, n := range list.Items {
		before[n.Name] = n
	}
	c.kubectl(t, "-n", namespace, "rollout", "restart", "daemonset/holdfast-agent")
	c.waitForRollout(t, namespace, "daemonset/holdfast-agent")
	c.kubectl(t, "annotate", "node", c.worker(4), "example.org/updated=true")

	ctx, cancel := context.WithTimeout(t.Context(), shortTimeout)
	defer cancel()
	watch, err := c.client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(t, err)
	defer watch.Stop()
	versions := 0
	for event := range watch.ResultChan() {
		is, ok := event.Object.(*corev1.Node)
		require.True(t, ok, "%v", event.Object)
		if is.Annotations["example.org/updated"] != "" {
			c.kubectl(t, "annotate", "node", c.worker(4), "example.org/updated-")
			t.Logf("checked %d versions", versions)
			return
		}
		versions++
		was := before[is.Name]
		require.Equal(t, was.Spec, is.Spec, is.Name)
		require.Equal(t, was.Labels, is.Labels, is.Name)
		require.Equal(t, was.Annotations, is.Annotations, is.Name)
		for _, kind := range []corev1.NodeConditionType{
			observation.EtcdMemberCondition, readiness.NetworkHeld, corev1.NodeNetworkUnavailable,
		} {
			was, is := condition(&was, kind), condition(is, kind)
			require.Equal(t, [3]string{string(was.Status), was.Reason, was.Message},
				[3]string{string(is.Status), is.Reason, is.Message},
				"condition %s of node %s", kind, event.Object.(*corev1.Node).Name)
		}
	}
	require.FailNow(t, "the watch ended before the last change")
}
