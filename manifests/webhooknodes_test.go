package manifests_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testWebhookNodes checks what the account of the webhook may write to Nodes: what it does for
// a missing agent and for a missing label, and nothing else. Its token names no Node.
func testWebhookNodes(t *testing.T, server *apiserver.Server) {
	const (
		badLabel   = "the webhook may only set label holdfast.dev/etcd-member=true, and may not change "
		badNote    = "the webhook may only change annotation holdfast.dev/hold"
		badCordon  = "the webhook may uncordon a Node, but not cordon it"
		badMeta    = "of the metadata of a Node the webhook may change only"
		badSpec    = "of the spec of a Node the webhook may change only unschedulable and taints"
		badStatus  = "of the status of a Node the webhook may change only conditions"
		badTaint   = "the webhook may not set taint "
		removed    = "the webhook may remove only the taints of a hold, not "
		conditions = "only the conditions NetworkHeld, NetworkUnavailable, not "
		outage     = `,{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}`
		hold       = `,{"key":"readiness.k8s.io/x","effect":"NoSchedule"}`
		mark       = "karpenter.sh/do-not-disrupt"
	)
	addNodes(t, server, "held", "etcd")
	patchNode(t, server, "held", ownNode)
	patchNode(t, server, "held", `{"metadata":{"annotations":{"holdfast.dev/hold":"{}"}},"spec":{"unschedulable":true}}`)
	removeProtection(t, server, "held")
	defer patchNode(t, server, "held", `{"metadata":{"finalizers":null}}`)
	patchNode(t, server, "etcd", `{"metadata":{"labels":{"holdfast.dev/etcd-member":"true"},"annotations":{"`+mark+
		`":"true","holdfast.dev/etcd":"[]"}},"spec":{"unschedulable":false}}`)
	defer removeProtection(t, server, "etcd")
	webhook := serviceAccount(t, server, "holdfast-webhook", "")
	status := func(patch string) string { return `{"status":{` + patch + `}}` }
	for name, test := range map[string]struct{ node, patch, subresource, want string }{
		"label":               {patch: labels(`{"holdfast.dev/etcd-member":"true"}`)},
		"label changed":       {patch: labels(`{"holdfast.dev/etcd-member":"yes"}`), want: badLabel},
		"label removed":       {node: "etcd", patch: removeLabel, want: "label holdfast.dev/etcd-member protects node etcd"},
		"other own label":     {patch: labels(`{"holdfast.dev/hold":"never"}`), want: badLabel + "holdfast.dev/hold"},
		"foreign label":       {patch: labels(`{"env":"test"}`), want: badLabel + "env"},
		"label of SPC":        {patch: labels(`{"stackpoint.io/role":"x"}`), want: badLabel},
		"record":              {patch: annotations(`{"holdfast.dev/hold":"{\"state\":\"released\"}"}`)},
		"marks removed":       {patch: annotations(`{"` + mark + `":null}`)},
		"mark set":            {patch: annotations(`{"atlassian.com/no-delete":"x"}`), want: badNote},
		"mark of etcd":        {node: "etcd", patch: annotations(`{"` + mark + `":null}`), want: badNote},
		"announcement set":    {patch: annotations(`{"holdfast.dev/etcd":"[]"}`), want: badNote},
		"announcement gone":   {node: "etcd", patch: annotations(`{"holdfast.dev/etcd":null}`), want: "only its own agent"},
		"override":            {patch: annotations(`{"holdfast.dev/break-glass":"x"}`), want: "set, change or remove it"},
		"keep-cordoned":       {patch: annotations(`{"holdfast.dev/keep-cordoned":"x"}`), want: badNote},
		"foreign annotation":  {patch: annotations(`{"example.org/a":null}`), want: badNote},
		"finalizer removed":   {patch: `{"metadata":{"finalizers":null}}`, want: badMeta},
		"uncordon":            {patch: `{"spec":{"unschedulable":null}}`},
		"cordon":              {node: "etcd", patch: `{"spec":{"unschedulable":true}}`, want: badCordon},
		"provider ID":         {patch: `{"spec":{"providerID":"aws:///i-1"}}`, want: badSpec},
		"hold taints removed": {patch: taints("")},
		"taint of hold":       {patch: taints(hold), want: badTaint + "readiness.k8s.io/x:NoSchedule"},
		"foreign taint":       {patch: taints(outage), want: badTaint + "node.kubernetes.io/out-of-service"},
		"all taints removed":  {patch: `{"spec":{"taints":null}}`, want: removed},
		"conditions of holds": {
			patch: status(`"conditions":[{"type":"NetworkHeld","status":"True"},
				{"type":"NetworkUnavailable","status":"False"}]`), subresource: "status",
		},
		"condition of etcd": {
			patch: status(`"conditions":[{"type":"EtcdMember","status":"False"}]`), subresource: "status",
			want: conditions + "EtcdMember",
		},
		"condition Ready": {
			patch: status(`"conditions":[{"type":"Ready","status":"True"}]`), subresource: "status",
			want: conditions + "Ready",
		},
		"address": {
			patch:       status(`"addresses":[{"type":"InternalIP","address":"192.0.2.9"}]`),
			subresource: "status", want: badStatus,
		},
		"label through status": {
			patch: labels(`{"holdfast.dev/etcd-member":"true"}`), subresource: "status",
			want: "the webhook may not change labels or annotations through the status of a Node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, subresources := "held", []string(nil)
			if test.node != "" {
				node = test.node
			}
			if test.subresource != "" {
				subresources = []string{test.subresource}
			}
			requireVerdict(t, test.want, patchDry(t.Context(), webhook, node, test.patch, subresources...))
		})
	}
	t.Run("deletion", func(t *testing.T) {
		unrestricted := as(t, server, rest.ImpersonationConfig{
			UserName: "system:serviceaccount:holdfast-system:holdfast-webhook", Groups: []string{"system:masters"},
		})
		dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
		err := unrestricted.CoreV1().Nodes().Delete(t.Context(), "held", dry)
		requireVerdict(t, "the webhook may neither create nor delete Nodes", err)
	})
}
