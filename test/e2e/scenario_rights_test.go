//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// scenarioAgentRights uses the token of an agent, as an attacker with root on its worker could,
// and tests its rights.
func scenarioAgentRights(t *testing.T, c *kindCluster) {
	own := c.worker(4)
	attacker := c.stolenAgentClient(t, own)
	nodes := attacker.CoreV1().Nodes()
	patch := func(node, body string, sub ...string) error {
		_, err := nodes.Patch(t.Context(), node, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
		return err
	}
	for _, body := range []string{
		`{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`,
		`{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`,
		`{"spec":{"unschedulable":true}}`,
		`{"metadata":{"annotations":{"holdfast.dev/hold":"x"}}}`,
	} {
		require.ErrorContains(t, patch(c.worker(1), body), "the Node of this token is "+own)
	}
	require.ErrorContains(t, patch(c.worker(1), `{"metadata":{"annotations":{"x":"y"}}}`, "status"),
		"the Node of this token is "+own)
	require.Error(t, nodes.Delete(t.Context(), own, metav1.DeleteOptions{}))
	require.ErrorContains(t, patch(own, `{"metadata":{"annotations":{"holdfast.dev/break-glass":"x"}}}`),
		`verb "breakglass"`)

	ours := c.etcdCluster(t)
	path := "/apis/holdfast.dev/v1alpha1/etcdclusters/" + ours.Name
	send := func(sub, body string) error {
		request := attacker.RESTClient().Patch(types.MergePatchType).AbsPath(path + sub)
		return request.Body([]byte(body)).Do(t.Context()).Error()
	}
	require.Error(t, send("/status", `{"status":{"healthy":99}}`))
	require.Error(t, send("", `{"spec":{"grants":[]}}`))
	others := observationPath + "/" + v1alpha1.ObservationName(v1alpha1.ClusterID(ours.Name), c.worker(1))
	object, err := attacker.RESTClient().Get().AbsPath(others).DoRaw(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, attacker.RESTClient().Put().AbsPath(others).Body(object).Do(t.Context()).Error(),
		"the agent of node "+own+" may change only the observations of that node")
	require.Error(t, attacker.RESTClient().Delete().AbsPath(others).Do(t.Context()).Error())
	c.claimMember(t, own, patch)
	c.compareRights(t)
}

// compareRights compares the rights of the two service accounts with docs/permissions.md.
func (c *kindCluster) compareRights(t *testing.T) {
	t.Helper()
	for account, documented := range c.documentedRights(t) {
		require.Equal(t, documented, c.rightsOf(t, account, namespace), account)
		events := func(line string) bool { return !strings.HasPrefix(line, "events") }
		require.Equal(t, []string{"events [] [create patch]", "events.events.k8s.io [] [create patch]"},
			slices.DeleteFunc(c.rightsOf(t, account, "default"), events), account)
		elsewhere := func(line string) bool {
			return strings.HasPrefix(line, "nodes") || strings.HasPrefix(line, "etcdclusters") ||
				strings.HasPrefix(line, "etcdobservations") ||
				strings.HasPrefix(line, "validatingwebhook")
		}
		require.Empty(t, slices.DeleteFunc(c.rightsOf(t, account, "kube-system"), elsewhere),
			"account %s has rights in other namespaces", account)
	}
}

// documentedRights returns the lines of docs/permissions.md, by account.
func (c *kindCluster) documentedRights(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(c.root, "docs/permissions.md"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(page), "### In the API")
	require.True(t, found)
	block := strings.Split(after, "```")[1]
	rights, account := map[string][]string{}, ""
	for line := range strings.Lines(strings.TrimSpace(block)) {
		right, indented := strings.TrimSpace(line), strings.HasPrefix(line, "  ")
		if !indented {
			account = right
			continue
		}
		rights[account] = append(rights[account], right)
	}
	require.Len(t, rights, 2)
	return rights
}

// claimMember announces, as a worker's agent, a member that runs on another node. Holdfast does
// not bind it.
func (c *kindCluster) claimMember(t *testing.T, own string, patch func(node, body string, sub ...string) error) {
	t.Helper()
	ours := c.etcdCluster(t)
	bindings := ours.Spec.Members
	claim := fmt.Sprintf(`{"metadata":{"annotations":{%q:"[{\"cluster\":\"%s\",\"member\":\"%s\"}]"}}}`,
		observation.AnnouncementAnnotation, ours.Name, bindings[0].MemberID)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil { // the node's own agent removes it each time
		require.NoError(t, patch(own, claim))
		require.Equal(t, bindings, c.etcdCluster(t).Spec.Members, "a claim was bound")
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	c.waitForNode(t, own, "to have no claim", shortTimeout, isUnmarked)
}

// stolenAgentClient returns a client with the token of the agent's pod on a node, which it
// reads from the node's disk.
func (c *kindCluster) stolenAgentClient(t *testing.T, node string) *kubernetes.Clientset {
	t.Helper()
	pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(),
		metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=holdfast-agent",
			FieldSelector: "spec.nodeName=" + node,
		})
	require.NoError(t, err)
	// After an update, the previous pod may still be terminating.
	live := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	require.Len(t, live, 1)
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = strings.TrimSpace(c.runOn(t, node,
		"cat /var/lib/kubelet/pods/"+string(live[0].UID)+"/volumes/kubernetes.io~projected/kube-api-access-*/token"))
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// rightsOf returns the rights of an account in a namespace, except those of every account. Each
// line has the form "resource [names] [verbs]".
func (c *kindCluster) rightsOf(t *testing.T, account, in string) []string {
	t.Helper()
	var found []string
	out := c.kubectl(t, "auth", "can-i", "--list", "--no-headers", "-n", in,
		"--as=system:serviceaccount:"+namespace+":"+account)
	for line := range strings.Lines(out) {
		resource, rest, _ := strings.Cut(line, " ")
		if resource == "" || strings.HasPrefix(resource, "selfsubject") {
			continue
		}
		_, rest, _ = strings.Cut(rest, "[]") // no URLs
		right := resource + " " + strings.Join(strings.Fields(rest), " ")
		found = append(found, numberOfPart.ReplaceAllString(right, "-N]"))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// numberOfPart ends the name of a part of the SPC inventory.
var numberOfPart = regexp.MustCompile(`-\d+]`)

// scenarioCordon drains, cordons and uncordons a worker, after a hold and during one.
func scenarioCordon(t *testing.T, c *kindCluster) {
	name := c.worker(4)
	c.kubectl(t, "drain", name, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=5m")
	c.kubectl(t, "-n", namespace, "delete", "pod", "-l", "app.kubernetes.io/name=holdfast-agent", "--field-selector",
		"spec.nodeName="+name)
	c.waitForRollout(t, namespace, "daemonset/holdfast-agent")
	c.requireUnchanged(t, name, "drained",
		func(n *corev1.Node) bool { return n.Spec.Unschedulable && holdState(n) == readiness.Released })
	c.kubectl(t, "uncordon", name)
	c.waitForRelease(t, name)

	t.Log("uncordon during a hold")
	c.joinHeld(t, name)
	c.kubectl(t, "uncordon", name)
	c.waitForNode(t, name, "to be open in spec and status", shortTimeout, func(n *corev1.Node) bool {
		return holdState(n) == readiness.Overridden && !n.Spec.Unschedulable &&
			!conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue) &&
			conditionIs(n, readiness.NetworkHeld, corev1.ConditionFalse)
	})
	c.requireUnchanged(t, name, "open", func(n *corev1.Node) bool {
		return !n.Spec.Unschedulable && !conditionIs(n, corev1.NodeNetworkUnavailable, corev1.ConditionTrue)
	})

	t.Log("drain during a hold, with keep-cordoned")
	c.joinHeld(t, name)
	c.kubectl(t, "annotate", "node", name, readiness.KeepCordonedAnnotation+"=repairs")
	c.kubectl(t, "drain", name, "--ignore-daemonsets", "--force", "--timeout=5m")
	require.Equal(t, readiness.Held, holdState(c.node(t, name)))
	c.restoreFlannel(t)
	c.waitForNode(t, name, "to be released but cordoned", longTimeout, func(n *corev1.Node) bool {
		return holdState(n) == readiness.Released && n.Spec.Unschedulable &&
			conditionIs(n, corev1.NodeReady, corev1.ConditionTrue)
	})
	c.requireUnchanged(t, name, "cordoned", func(n *corev1.Node) bool { return n.Spec.Unschedulable })
	c.kubectl(t, "annotate", "node", name, readiness.KeepCordonedAnnotation+"-")
	c.kubectl(t, "uncordon", name)
	c.waitForRelease(t, name)
}
