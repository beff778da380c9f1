//go:build e2e

package e2e_test

import (
	"context"
	"crypto/x509"
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

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// partition cuts an etcd host off the network. What cannot be seen there is not taken for healthy, and is called by its name.
func partition(t *testing.T, c *cluster) {
	cut, asked := c.worker(2), c.worker(1)
	c.on(t, cut, "iptables -I INPUT ! -i lo -j DROP; iptables -I OUTPUT ! -o lo -j DROP")
	defer c.on(t, cut, "iptables -D INPUT ! -i lo -j DROP; iptables -D OUTPUT ! -o lo -j DROP")
	// A replica of the webhook may be on that host: then the API server hears of it first.
	c.denied(t, []string{
		"of 3 voters 2 must live, and only 1 would be left that is proven healthy",
		`etcd2 \([0-9a-f]+\) on node ` + cut + `: not proven healthy: .*its own node's agent has not answered and was last heard at 20`,
	}, "delete", "node", asked)
	require.True(t, marked(c.node(t, cut)))
}

// without kills both replicas of the webhook. Whose Node has no etcd can be deleted, whose has cannot.
func without(t *testing.T, c *cluster) {
	c.kubectl(t, "-n", namespace, "scale", "deployment/holdfast-webhook", "--replicas=0")
	c.kubectl(t, "-n", namespace, "delete", "pod", "-l", "app.kubernetes.io/name=holdfast-webhook", "--force", "--grace-period=0", "--ignore-not-found")
	unanswered := 0
	c.eventually(t, "the API server notices that nobody answers", long, func(ctx context.Context) (bool, string) {
		out, err := c.try(ctx, c.tool("kubectl"), "delete", "node", c.worker(1), "--dry-run=server")
		if unanswered++; err == nil || !strings.Contains(out, `failed calling webhook "etcd-nodes.holdfast.dev"`) {
			unanswered = 0
		}
		return unanswered == 3, out // one of them may have met a connection that was just closed, and the next another replica
	})
	require.Contains(t, c.refused(t, "delete", "node", c.worker(1)), `failed calling webhook "etcd-nodes.holdfast.dev"`)
	c.strip(t, c.worker(4))
	c.kubectl(t, "delete", "node", c.worker(4))

	c.kubectl(t, "-n", namespace, "scale", "deployment/holdfast-webhook", "--replicas=2")
	c.wholeWebhook(t)
	c.join(t, c.worker(4))
	c.released(t, c.worker(4))
	c.eventually(t, "one etcd node may go again", long, func(ctx context.Context) (bool, string) {
		out, err := c.try(ctx, c.tool("kubectl"), "delete", "node", c.worker(1), "--dry-run=server")
		return err == nil, out
	})
}

// rotation takes the certificates away while Nodes are deleted all the time. New ones are made, the API server is told of the
// new authority before it meets it, and no request is refused.
func rotation(t *testing.T, c *cluster) {
	before := c.authorities(t)
	done, finish := context.WithCancel(t.Context())
	defer finish()
	asked := 0
	group, ctx := errgroup.WithContext(t.Context())
	group.Go(func() error {
		for ; done.Err() == nil; asked++ {
			if err := c.ghost(ctx, fmt.Sprintf("ghost-%d", asked)); err != nil {
				return fmt.Errorf("request %d: %w", asked, err)
			}
		}
		return nil
	})
	c.kubectl(t, "-n", namespace, "delete", "secret", "holdfast-webhook-tls")
	c.eventually(t, "the old authority and a new one are trusted", long, func(context.Context) (bool, string) {
		now := c.authorities(t)
		return len(now) == len(before)+1 && now[1] == before[0], fmt.Sprintf("%d authorities", len(now))
	})
	c.kubectl(t, "-n", namespace, "rollout", "restart", "deployment/holdfast-webhook")
	c.rolledOut(t, namespace, "deployment/holdfast-webhook")
	c.eventually(t, "those that have the old certificate are gone", long, func(ctx context.Context) (bool, string) {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast-webhook"})
		return err == nil && len(pods.Items) == 2, fmt.Sprintf("%d replicas, %v", len(pods.Items), err)
	})
	finish()
	require.NoError(t, group.Wait())
	secret, err := c.client.CoreV1().Secrets(namespace).Get(t.Context(), "holdfast-webhook-tls", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEqual(t, before[0], string(secret.Data["ca.crt"]))
	block, _ := pem.Decode(secret.Data["tls.crt"])
	require.NotNil(t, block)
	pair, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(secret.Data["ca.crt"]))
	_, err = pair.Verify(x509.VerifyOptions{Roots: trusted, DNSName: "holdfast-webhook." + namespace + ".svc"})
	require.NoError(t, err, "the new certificate is one of the new authority's")
	t.Logf("%d Nodes were deleted meanwhile", asked)
	require.Greater(t, asked, 10)
}

// ghost makes a Node without a machine whose deletion the fail-closed webhook has to allow, for its glass is broken, and has
// it deleted.
func (c *cluster) ghost(ctx context.Context, name string) error {
	nodes := c.client.CoreV1().Nodes()
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{protect.EtcdMemberLabel: "true"}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	value, err := json.Marshal(protect.BreakGlass{UID: made.UID, Until: time.Now().UTC().Add(time.Hour), Reason: "an exercise"})
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{protect.BreakGlassAnnotation: string(value)}}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	return nodes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}})
}

// authorities are the certificates that the API server trusts for the fail-closed webhook, in PEM, the current one first.
func (c *cluster) authorities(t *testing.T) []string {
	t.Helper()
	config, err := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "holdfast", metav1.GetOptions{})
	require.NoError(t, err)
	var found []string
	for block, rest := pem.Decode(config.Webhooks[0].ClientConfig.CABundle); block != nil; block, rest = pem.Decode(rest) {
		found = append(found, string(pem.EncodeToMemory(block)))
	}
	return found
}

// update restarts all agents, as an update does, and looks at every version of every Node meanwhile: kubelets write that
// they live, and nothing else changes.
func update(t *testing.T, c *cluster) {
	c.healthy(t, 3)
	list, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	before := map[string]corev1.Node{}
	for _, n := range list.Items {
		before[n.Name] = n
	}
	c.kubectl(t, "-n", namespace, "rollout", "restart", "daemonset/holdfast-agent")
	c.rolledOut(t, namespace, "daemonset/holdfast-agent")
	c.kubectl(t, "annotate", "node", c.worker(4), "example.org/updated=true")

	ctx, cancel := context.WithTimeout(t.Context(), soon)
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
			t.Logf("%d versions were looked at", versions)
			return
		}
		versions++
		was := before[is.Name]
		require.Equal(t, was.Spec, is.Spec, is.Name)
		require.Equal(t, was.Labels, is.Labels, is.Name)
		require.Equal(t, was.Annotations, is.Annotations, is.Name)
		for _, kind := range []corev1.NodeConditionType{protect.EtcdMemberCondition, readiness.NetworkHeld, corev1.NodeNetworkUnavailable} {
			was, is := condition(&was, kind), condition(is, kind)
			require.Equal(t, [3]string{string(was.Status), was.Reason, was.Message}, [3]string{string(is.Status), is.Reason, is.Message},
				"condition %s of node %s", kind, event.Object.(*corev1.Node).Name)
		}
	}
	require.FailNow(t, "the watch ended early")
}
