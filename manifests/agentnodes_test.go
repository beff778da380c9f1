package manifests_test

import (
	"cmp"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

// ownNode is the Node of the agent under test. Each rule has something to guard on it.
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

// taints returns a patch that keeps the foreign taints of ownNode and adds others. A write of
// taints replaces the whole list.
func taints(added string) string {
	return `{"spec":{"taints":[{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"},
		{"key":"example.org/gpu","value":"yes","effect":"NoSchedule"}` + added + `]}}`
}

func testAgentNodes(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own", "other")
	patchNode(t, server, "own", ownNode)
	defer patchNode(t, server, "own", `{"metadata":{"finalizers":null}}`)
	defer removeProtection(t, server, "own")
	agent := serviceAccount(t, server, "holdfast-agent", "own")
	unbound := serviceAccount(t, server, "holdfast-agent", "")

	t.Run("identity", func(t *testing.T) { testAgentIdentity(t, server, agent, unbound) })
	t.Run("allowed", func(t *testing.T) { testAgentAllowed(t, agent) })
	t.Run("refused", func(t *testing.T) { testAgentRefused(t, agent) })
	t.Run("status", func(t *testing.T) { testAgentStatus(t, agent, unbound) })
	t.Run("subresource", func(t *testing.T) { testAgentSubresource(t, server, agent) })
	t.Run("other verbs", func(t *testing.T) {
		dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
		err := unrestrictedAgent(t, server).CoreV1().Nodes().Delete(t.Context(), "own", dry)
		require.ErrorContains(t, err, "an agent may neither create nor delete Nodes")
		require.True(t, apierrors.IsForbidden(agent.CoreV1().Nodes().Delete(t.Context(), "own", dry)))
	})
}

// testAgentIdentity checks that a token is valid only for the Node that it is bound to.
func testAgentIdentity(t *testing.T, server *apiserver.Server, agent, unbound *kubernetes.Clientset) {
	const wrongNode, noNode = "the Node of this token is own", "the Node of this token is <none>"
	pod := podToken(t, server, "own")
	role, id := labels(`{"stackpoint.io/role":"x"}`), labels(`{"stackpoint.io/instance_id":"4711"}`)
	for name, test := range map[string]struct {
		as                *kubernetes.Clientset
		node, patch, want string
	}{
		"token of its pod":                 {as: pod, patch: id},
		"other Node":                       {node: "other", patch: role, want: wrongNode},
		"other Node with token of its pod": {as: pod, node: "other", patch: role, want: wrongNode},
		"unbound token":                    {as: unbound, patch: role, want: noNode},
	} {
		t.Run(name, func(t *testing.T) {
			err := patchDry(t.Context(), cmp.Or(test.as, agent), cmp.Or(test.node, "own"), test.patch)
			requireVerdict(t, test.want, err)
		})
	}
}

func testAgentAllowed(t *testing.T, agent *kubernetes.Clientset) {
	marks, err := json.Marshal(autoscaler.Annotations("x"))
	require.NoError(t, err)
	const otherTaints = `,{"key":"readiness.k8s.io/network","effect":"NoSchedule"},` +
		`{"key":"startup-taint.cluster-autoscaler.kubernetes.io/x","effect":"NoSchedule"}`
	record := `{"metadata":{"annotations":{"holdfast.dev/hold":"{}"}},"spec":{"unschedulable":`
	for name, patch := range map[string]string{
		"labels":                labels(`{"holdfast.dev/etcd-member":"true","stackpoint.io/instance_id":"4711"}`),
		"own labels removed":    labels(`{"holdfast.dev/etcd-member":null,"stackpoint.io/role":null}`),
		"record and cordon":     record + `true}}`,
		"uncordon":              record + `null}}`,
		"marks":                 annotations(string(marks)),
		"marks removed":         annotations(`{"karpenter.sh/do-not-disrupt":null,"holdfast.dev/marks":null}`),
		"taints of hold absent": taints(""),
		"taints of other holds": taints(otherTaints),
	} {
		t.Run(name, func(t *testing.T) { requireVerdict(t, "", patchDry(t.Context(), agent, "own", patch)) })
	}
}

func testAgentRefused(t *testing.T, agent *kubernetes.Clientset) {
	const (
		badLabel    = "only labels of holdfast.dev/ and stackpoint.io/, not "
		badNote     = "and the marks for autoscalers, not "
		badTaint    = "with effect NoSchedule, not "
		removed     = "an agent may remove only the taints of a hold, not "
		badMeta     = "may change only labels and annotations"
		badSpec     = "may change only unschedulable and taints"
		tier        = "node-restriction.kubernetes.io/tier"
		outage      = "node.kubernetes.io/out-of-service"
		unavailable = "node.kubernetes.io/network-unavailable"
		unreachable = `{"key":"node.kubernetes.io/unreachable","effect":"NoExecute"}`
		noSchedule  = ":NoSchedule"
		owner       = `{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}`
	)
	for name, test := range map[string]struct{ patch, want string }{
		"foreign label":         {labels(`{"env":"test"}`), badLabel + "env"},
		"foreign label removed": {labels(`{"env":null}`), badLabel + "env"},
		"all labels removed":    {labels(`null`), badLabel},
		"restricted label":      {labels(`{"` + tier + `":"db"}`), badLabel + tier},
		"similar label":         {labels(`{"holdfast.dev.example.org/x":"y"}`), badLabel},
		"annotation of others":  {annotations(`{"example.org/a":"c"}`), badNote + "example.org/a"},
		"annotation removed":    {annotations(`{"example.org/a":null}`), badNote + "example.org/a"},
		"finalizer":             {`{"metadata":{"finalizers":["example.org/keep","example.org/x"]}}`, badMeta},
		"finalizer removed":     {`{"metadata":{"finalizers":null}}`, badMeta},
		"owner":                 {`{"metadata":{"ownerReferences":[` + owner + `]}}`, badMeta},
		"provider ID":           {`{"spec":{"providerID":"aws:///i-1"}}`, badSpec},
		"pod CIDR":              {`{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}`, badSpec},
		"foreign taint":         {taints(`,{"key":"` + outage + `","effect":"NoSchedule"}`), badTaint + outage + noSchedule},
		"evicting taint":        {taints(`,{"key":"holdfast.dev/held","effect":"NoExecute"}`), badTaint},
		"taint with value":      {taints(`,{"key":"` + unavailable + `","effect":"NoSchedule","value":"x"}`), badTaint},
		"foreign taint removed": {`{"spec":{"taints":[` + unreachable + `]}}`, removed + "example.org/gpu"},
		"foreign taint changed": {
			`{"spec":{"taints":[` + unreachable + `,{"key":"example.org/gpu","effect":"NoSchedule"}]}}`, badTaint,
		},
		"all taints removed": {`{"spec":{"taints":null}}`, removed},
	} {
		t.Run(name, func(t *testing.T) {
			requireVerdict(t, test.want, patchDry(t.Context(), agent, "own", test.patch))
		})
	}
}

func testAgentStatus(t *testing.T, agent, unbound *kubernetes.Clientset) {
	const (
		conditionsOnly = "of the status of a Node an agent may change only conditions"
		throughStatus  = "labels or annotations through the status of a Node"
		notReady       = "NetworkHeld, NetworkUnavailable, not Ready"
		notPressure    = "NetworkHeld, NetworkUnavailable, not DiskPressure"
	)
	status := func(patch string) string { return `{"status":{` + patch + `}}` }
	etcdMember := status(`"conditions":[{"type":"EtcdMember","status":"True"}]`)
	for name, test := range map[string]struct {
		as                *kubernetes.Clientset
		node, patch, want string
	}{
		"its conditions": {patch: status(`"conditions":[{"type":"EtcdMember","status":"True"},
			{"type":"NetworkHeld","status":"True"},{"type":"NetworkUnavailable","status":"False"}]`)},
		"other Node":        {node: "other", patch: etcdMember, want: "the Node of this token is own"},
		"unbound token":     {as: unbound, patch: etcdMember, want: "the Node of this token is <none>"},
		"condition Ready":   {patch: status(`"conditions":[{"type":"Ready","status":"True"}]`), want: notReady},
		"condition removed": {patch: status(`"conditions":[{"type":"DiskPressure","$patch":"delete"}]`), want: notPressure},
		"address": {
			patch: status(`"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]`), want: conditionsOnly,
		},
		"addresses removed": {patch: status(`"addresses":null`), want: conditionsOnly},
		"capacity":          {patch: status(`"capacity":{"example.org/gpu":"8"}`), want: conditionsOnly},
		"boot ID":           {patch: status(`"nodeInfo":{"bootID":"x"}`), want: conditionsOnly},
		"own label":         {patch: labels(`{"stackpoint.io/role":"x"}`), want: throughStatus},
		"foreign label":     {patch: labels(`{"env":"x"}`), want: "only labels of holdfast.dev/"},
		"annotation":        {patch: annotations(`{"holdfast.dev/hold":"x"}`), want: throughStatus},
	} {
		t.Run(name, func(t *testing.T) {
			client, node := cmp.Or(test.as, agent), cmp.Or(test.node, "own")
			requireVerdict(t, test.want, patchDry(t.Context(), client, node, test.patch, "status"))
		})
	}
}

// testAgentSubresource checks that a write to the status does not change the spec, and a write
// to the Node does not change the status.
func testAgentSubresource(t *testing.T, server *apiserver.Server, agent *kubernetes.Clientset) {
	before, err := server.Client().CoreV1().Nodes().Get(t.Context(), "own", metav1.GetOptions{})
	require.NoError(t, err)
	const addresses = `"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]`
	for _, test := range []struct{ patch, subresource string }{
		{`{"spec":{"providerID":"aws:///i-1","podCIDR":"10.9.0.0/24"}}`, "status"},
		{`{"status":{` + addresses + `,"capacity":{"example.org/gpu":"8"}}}`, ""},
	} {
		after, err := agent.CoreV1().Nodes().Patch(t.Context(), "own", types.MergePatchType,
			[]byte(test.patch), metav1.PatchOptions{}, test.subresource)
		require.NoError(t, err)
		require.Equal(t, before.Spec, after.Spec)
		require.Equal(t, before.Status, after.Status)
	}
}
