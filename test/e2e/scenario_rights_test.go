//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// rights takes the token that an agent has on a worker, as whoever breaks into that worker can, and tries what it is good for.
func rights(t *testing.T, c *cluster) {
	own := c.worker(4)
	thief := c.stolen(t, own)
	nodes := thief.CoreV1().Nodes()
	patch := func(node, body string, sub ...string) error {
		_, err := nodes.Patch(t.Context(), node, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
		return err
	}
	for _, body := range []string{`{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`, `{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`, `{"spec":{"unschedulable":true}}`, `{"metadata":{"annotations":{"holdfast.dev/hold":"x"}}}`} {
		require.ErrorContains(t, patch(c.worker(1), body), "this one is of node "+own)
	}
	require.ErrorContains(t, patch(c.worker(1), `{"metadata":{"annotations":{"x":"y"}}}`, "status"), "this one is of node "+own)
	require.Error(t, nodes.Delete(t.Context(), own, metav1.DeleteOptions{}))
	require.ErrorContains(t, patch(own, `{"metadata":{"annotations":{"holdfast.dev/break-glass":"x"}}}`), `verb "breakglass"`)

	ours := c.etcdCluster(t)
	path := "/apis/holdfast.dev/v1alpha1/etcdclusters/" + ours.Name
	send := func(sub, body string) error {
		return thief.RESTClient().Patch(types.MergePatchType).AbsPath(path + sub).Body([]byte(body)).Do(t.Context()).Error()
	}
	require.ErrorContains(t, send("/status", `{"status":{"observations":[]}}`), "the agent of node "+own+" may change the observation of that node only")
	require.ErrorContains(t, send("/status", `{"status":{"healthy":99}}`), "an agent may change observations only")
	require.Error(t, send("", `{"spec":{"grants":[]}}`))
	c.claims(t, own, patch)
	c.accounts(t)
}

// accounts compares what the two accounts may do with what docs/operations.md says.
func (c *cluster) accounts(t *testing.T) {
	t.Helper()
	for account, documented := range c.documentedRights(t) {
		require.Equal(t, documented, c.verbs(t, account, namespace), account)
		events := func(line string) bool { return !strings.HasPrefix(line, "events") }
		require.Equal(t, []string{"events [] [create patch]", "events.events.k8s.io [] [create patch]"}, slices.DeleteFunc(c.verbs(t, account, "default"), events), account)
		elsewhere := func(line string) bool {
			return strings.HasPrefix(line, "nodes") || strings.HasPrefix(line, "etcdclusters") || strings.HasPrefix(line, "validatingwebhook")
		}
		require.Empty(t, slices.DeleteFunc(c.verbs(t, account, "kube-system"), elsewhere), "%s has rights in other namespaces", account)
	}
}

// documentedRights are the lines of docs/operations.md, by account.
func (c *cluster) documentedRights(t *testing.T) map[string][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(c.root, "docs/operations.md"))
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

// claims has a worker's agent say that it runs a member which runs elsewhere. Nobody believes it.
func (c *cluster) claims(t *testing.T, own string, patch func(node, body string, sub ...string) error) {
	t.Helper()
	ours := c.etcdCluster(t)
	bindings := ours.Spec.Members
	claim := fmt.Sprintf(`{"metadata":{"annotations":{%q:"[{\"cluster\":\"%s\",\"member\":\"%s\"}]"}}}`, protect.AnnouncementAnnotation, ours.Name, bindings[0].MemberID)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil { // its own agent takes it back each time
		require.NoError(t, patch(own, claim))
		require.Equal(t, bindings, c.etcdCluster(t).Spec.Members, "a claim was believed")
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	c.until(t, own, "has no claim any more", soon, unmarked)
}

// stolen returns a client with the token of the agent's pod on a node, read from the node's disk.
func (c *cluster) stolen(t *testing.T, node string) *kubernetes.Clientset {
	t.Helper()
	pods, err := c.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=holdfast-agent", FieldSelector: "spec.nodeName=" + node})
	require.NoError(t, err)
	// After an update the pod of before may still be there, on its way out.
	live := slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	require.Len(t, live, 1)
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = strings.TrimSpace(c.on(t, node, "cat /var/lib/kubelet/pods/"+string(live[0].UID)+"/volumes/kubernetes.io~projected/kube-api-access-*/token"))
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return client
}

// verbs returns what an account may do in a namespace, but for what every account may: one "resource [names] [verbs]" a line.
func (c *cluster) verbs(t *testing.T, account, in string) []string {
	t.Helper()
	var found []string
	out := c.kubectl(t, "auth", "can-i", "--list", "--no-headers", "-n", in, "--as=system:serviceaccount:"+namespace+":"+account)
	for line := range strings.Lines(out) {
		resource, rest, _ := strings.Cut(line, " ")
		if resource == "" || strings.HasPrefix(resource, "selfsubject") {
			continue
		}
		_, rest, _ = strings.Cut(rest, "[]") // no URL
		found = append(found, resource+" "+strings.Join(strings.Fields(rest), " "))
	}
	slices.Sort(found)
	return found
}
