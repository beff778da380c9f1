package manifests_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// ownNode is the Node of the agent under test, on which every rule has something to guard.
const ownNode = `{
  "metadata": {
    "labels": {"holdfast.dev/etcd-member": "true", "stackpoint.io/role": "worker", "env": "prod"},
    "annotations": {"holdfast.dev/marks": "x", "karpenter.sh/do-not-disrupt": "true", "example.org/a": "b"},
    "finalizers": ["example.org/keep"]
  },
  "spec": {"taints": [
    {"key": "holdfast.dev/held", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    {"key": "example.org/gpu", "value": "yes", "effect": "NoSchedule"}
  ]}
}`

// taints is a patch that sets the whole list, as any write of taints must, to the foreign ones and what is given.
func taints(more string) string {
	return `{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"},
		{"key":"example.org/gpu","value":"yes","effect":"NoSchedule"}` + more + `]}}`
}

func testAgentNodes(t *testing.T, server *testenv.APIServer) {
	for _, name := range []string{"own", "other"} {
		_, _, err := server.AddNode(t.Context(), testenv.NodeSpec{Name: name})
		require.NoError(t, err)
		defer remove(t, server, name)
	}
	nodes := server.Client().CoreV1().Nodes()
	_, err := nodes.Patch(t.Context(), "own", types.MergePatchType, []byte(ownNode), metav1.PatchOptions{})
	require.NoError(t, err)
	defer func() {
		_, err := nodes.Patch(t.Context(), "own", types.MergePatchType, []byte(`{"metadata":{"labels":null,"finalizers":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}()

	const (
		wrongNode, noNode = "this one is of node own", "this one is of node <none>"
		badLabel, badNote = "labels of holdfast.dev/ and stackpoint.io/ only, not ", "the marks for autoscalers only, not "
		badTaint, tookOff = "with effect NoSchedule, not ", "take away the taints of a hold only, not "
		badMeta, badSpec  = "labels and annotations only", "unschedulable and taints only"
	)
	agent := clientOf(t, serviceAccount(t, server, "holdfast-agent", "own"))
	onPod := clientOf(t, podToken(t, server, "own"))
	unbound := clientOf(t, serviceAccount(t, server, "holdfast-agent", ""))
	for name, test := range map[string]struct {
		as    *kubernetes.Clientset
		node  string
		patch string
		want  string
	}{
		"labels":                        {patch: `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true","stackpoint.io/instance_id":"4711"}}}`},
		"own labels off":                {patch: `{"metadata":{"labels":{"holdfast.dev/etcd-member":null,"stackpoint.io/role":null}}}`},
		"hold record and cordon":        {patch: `{"metadata":{"annotations":{"holdfast.dev/hold":"{}"}},"spec":{"unschedulable":true}}`},
		"uncordon":                      {patch: `{"metadata":{"annotations":{"holdfast.dev/hold":"{}"}},"spec":{"unschedulable":null}}`},
		"autoscalers' marks":            {patch: `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true","atlassian.com/no-delete":"x","autoscaling.cast.ai/removal-disabled":"true"}}}`},
		"marks off":                     {patch: `{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":null,"holdfast.dev/marks":null}}}`},
		"taints of a hold off":          {patch: taints("")},
		"a taint of another hold":       {patch: taints(`,{"key":"readiness.k8s.io/network","effect":"NoSchedule"},{"key":"startup-taint.cluster-autoscaler.kubernetes.io/x","effect":"NoSchedule"}`)},
		"with the token of its pod":     {as: onPod, patch: `{"metadata":{"labels":{"stackpoint.io/instance_id":"4711"}}}`},
		"another Node":                  {node: "other", patch: `{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`, want: wrongNode},
		"another Node, from its pod":    {as: onPod, node: "other", patch: `{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`, want: wrongNode},
		"with a token bound to nothing": {as: unbound, patch: `{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`, want: noNode},
		"a label of others":             {patch: `{"metadata":{"labels":{"env":"test"}}}`, want: badLabel + "env"},
		"a label of others off":         {patch: `{"metadata":{"labels":{"env":null}}}`, want: badLabel + "env"},
		"all labels off":                {patch: `{"metadata":{"labels":null}}`, want: badLabel},
		"a label that kubelet may not":  {patch: `{"metadata":{"labels":{"node-restriction.kubernetes.io/tier":"db"}}}`, want: badLabel + "node-restriction.kubernetes.io/tier"},
		"a lookalike label":             {patch: `{"metadata":{"labels":{"holdfast.dev.example.org/x":"y"}}}`, want: badLabel},
		"an annotation of others":       {patch: `{"metadata":{"annotations":{"example.org/a":"c"}}}`, want: badNote + "example.org/a"},
		"an annotation of others off":   {patch: `{"metadata":{"annotations":{"example.org/a":null}}}`, want: badNote + "example.org/a"},
		"a finalizer":                   {patch: `{"metadata":{"finalizers":["example.org/keep","example.org/x"]}}`, want: badMeta},
		"a finalizer off":               {patch: `{"metadata":{"finalizers":null}}`, want: badMeta},
		"an owner":                      {patch: `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`, want: badMeta},
		"the provider's ID":             {patch: `{"spec":{"providerID":"aws:///i-1"}}`, want: badSpec},
		"the pods' network":             {patch: `{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, want: badSpec},
		"a foreign taint":               {patch: taints(`,{"key":"node.kubernetes.io/out-of-service","effect":"NoSchedule"}`), want: badTaint + "node.kubernetes.io/out-of-service:NoSchedule"},
		"a taint that evicts":           {patch: taints(`,{"key":"holdfast.dev/held","effect":"NoExecute"}`), want: badTaint},
		"the taint of an absent host":   {patch: taints(`,{"key":"node.kubernetes.io/network-unavailable","effect":"NoSchedule","value":"x"}`), want: badTaint},
		"a foreign taint off":           {patch: `{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}]}}`, want: tookOff + "example.org/gpu"},
		"a foreign taint changed":       {patch: `{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"},{"key":"example.org/gpu","effect":"NoSchedule"}]}}`, want: badTaint},
		"all taints off":                {patch: `{"spec":{"taints":null}}`, want: tookOff},
	} {
		t.Run(name, func(t *testing.T) {
			client := or(test.as, agent)
			requireVerdict(t, test.want, patchDry(t.Context(), client, orName(test.node), test.patch))
		})
	}
	t.Run("status", func(t *testing.T) { testAgentStatus(t, server, agent) })
	t.Run("a write to one half does nothing to the other", func(t *testing.T) {
		was, err := nodes.Get(t.Context(), "own", metav1.GetOptions{})
		require.NoError(t, err)
		for _, test := range []struct{ patch, subresource string }{
			{`{"spec":{"providerID":"aws:///i-1","podCIDR":"10.9.0.0/24"}}`, "status"},
			{`{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}],"capacity":{"example.org/gpu":"8"}}}`, ""},
		} {
			now, err := agent.CoreV1().Nodes().Patch(t.Context(), "own", types.MergePatchType, []byte(test.patch), metav1.PatchOptions{}, test.subresource)
			require.NoError(t, err)
			require.Equal(t, was.Spec, now.Spec)
			require.Equal(t, was.Status, now.Status)
		}
	})
	t.Run("no other verb, whatever RBAC says", func(t *testing.T) {
		almighty := as(t, server, rest.ImpersonationConfig{
			UserName: "system:serviceaccount:holdfast-system:holdfast-agent", Groups: []string{"system:masters"},
			Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"own"}},
		})
		dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
		require.ErrorContains(t, almighty.CoreV1().Nodes().Delete(t.Context(), "own", dry), "neither creates nor deletes")
		require.True(t, isForbidden(agent.CoreV1().Nodes().Delete(t.Context(), "own", dry)))
	})
}

func testAgentStatus(t *testing.T, server *testenv.APIServer, agent *kubernetes.Clientset) {
	unbound := clientOf(t, serviceAccount(t, server, "holdfast-agent", ""))
	for name, test := range map[string]struct {
		as          *kubernetes.Clientset
		node, patch string
		want        string
	}{
		"its conditions": {patch: `{"status":{"conditions":[{"type":"EtcdMember","status":"True"},{"type":"NetworkHeld","status":"True"},
			{"type":"NetworkUnavailable","status":"False"}]}}`},
		"another Node":         {node: "other", patch: `{"status":{"conditions":[{"type":"EtcdMember","status":"True"}]}}`, want: "this one is of node own"},
		"a token of no node":   {as: unbound, patch: `{"status":{"conditions":[{"type":"EtcdMember","status":"True"}]}}`, want: "this one is of node <none>"},
		"the kubelet's word":   {patch: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, want: "NetworkUnavailable only, not Ready"},
		"a condition taken":    {patch: `{"status":{"conditions":[{"type":"DiskPressure","$patch":"delete"}]}}`, want: "NetworkUnavailable only, not DiskPressure"},
		"an address":           {patch: `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]}}`, want: "status an agent may change conditions only"},
		"no address":           {patch: `{"status":{"addresses":null}}`, want: "status an agent may change conditions only"},
		"capacity":             {patch: `{"status":{"capacity":{"example.org/gpu":"8"}}}`, want: "status an agent may change conditions only"},
		"the boot":             {patch: `{"status":{"nodeInfo":{"bootID":"x"}}}`, want: "status an agent may change conditions only"},
		"a label by this door": {patch: `{"metadata":{"labels":{"stackpoint.io/role":"x"}}}`, want: "labels or annotations through a Node's status"},
		"a foreign label":      {patch: `{"metadata":{"labels":{"env":"x"}}}`, want: "labels of holdfast.dev/"},
		"an annotation":        {patch: `{"metadata":{"annotations":{"holdfast.dev/hold":"x"}}}`, want: "labels or annotations through a Node's status"},
	} {
		t.Run(name, func(t *testing.T) {
			requireVerdict(t, test.want, patchDry(t.Context(), or(test.as, agent), orName(test.node), test.patch, "status"))
		})
	}
}

// podToken returns what the kubelet of a node gives the agent's pod there: a token that is bound to the pod.
func podToken(t *testing.T, server *testenv.APIServer, node string) *rest.Config {
	t.Helper()
	client := server.Client().CoreV1()
	pod, err := client.Pods("holdfast-system").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "holdfast-agent-"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "holdfast-agent", Containers: []corev1.Container{{Name: "agent", Image: "holdfast-agent"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	made, err := client.ServiceAccounts("holdfast-system").CreateToken(t.Context(), "holdfast-agent", request, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(server.Admin())
	config.BearerToken = made.Status.Token
	return config
}

// patchDry patches a Node, strategically, without effect: policies see it all the same.
func patchDry(ctx context.Context, client *kubernetes.Clientset, node, patch string, subresource ...string) error {
	kind := types.StrategicMergePatchType
	if len(subresource) == 0 {
		kind = types.MergePatchType
	}
	_, err := client.CoreV1().Nodes().Patch(ctx, node, kind, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresource...)
	return err
}
