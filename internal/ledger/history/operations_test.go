package history

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func (p *pair) grants(now sides[v1alpha1.EtcdCluster]) (string, error, error) {
	grants := []v1alpha1.Grant{}
	for i := range p.choices.of(3) {
		grants = append(grants, v1alpha1.Grant{
			NodeUID: types.UID(fmt.Sprint("u", i)), Node: fmt.Sprint("n", i), Members: []v1alpha1.MemberID{"a"},
			Time: metav1.NewTime(time.Unix(1e9, 0)), User: []string{"", "alice"}[p.choices.of(2)],
		})
	}
	ledger := now.played.Spec.Ledger - int64(p.choices.of(2))
	return p.patch("grants", now, false, types.JSONPatchType, func(uid types.UID) any {
		return []operation{
			{"test", "/metadata/uid", uid},
			{"test", "/spec/ledger", ledger},
			{"replace", "/spec/ledger", ledger + 1},
			{"add", "/spec/grants", grants},
		}
	})
}

func (p *pair) bindings(now sides[v1alpha1.EtcdCluster]) (string, error, error) {
	test := operation{Op: "test", Path: "/spec/members"}
	if have := now.played.Spec.Members; len(have) > 0 != p.choices.chance(5) {
		test.Value = have
	}
	write := operation{"add", "/spec/members", []v1alpha1.Binding{{MemberID: "b", Node: "n2", NodeUID: types.UID(fmt.Sprint("u", p.choices.of(3)))}}}
	if p.choices.of(3) == 1 {
		write = operation{Op: "remove", Path: "/spec/members"}
	}
	return p.patch("bindings", now, false, types.JSONPatchType, func(uid types.UID) any {
		return []operation{{"test", "/metadata/uid", uid}, test, write}
	})
}

func (p *pair) nonce(now sides[v1alpha1.EtcdCluster]) (string, error, error) {
	nonce := fmt.Sprint("w", p.choices.of(3))
	return p.patch("nonce", now, false, types.MergePatchType, func(uid types.UID) any {
		return map[string]any{"metadata": map[string]any{"uid": uid}, "spec": map[string]any{"nonce": nonce}}
	})
}

// annotation sets the settlement by hand, or takes it off with a test of it, or tests that there is none.
func (p *pair) annotation(now sides[v1alpha1.EtcdCluster]) (string, error, error) {
	if p.choices.of(2) == 0 {
		value := fmt.Sprint("u", p.choices.of(2))
		return p.patch("annotate", now, false, types.MergePatchType, func(types.UID) any {
			return map[string]any{"metadata": map[string]any{"annotations": map[string]any{protect.SettleAnnotation: value}}}
		})
	}
	test := operation{Op: "test", Path: "/metadata/annotations/holdfast.dev~1settle", Value: fmt.Sprint("u", p.choices.of(2))}
	return p.patch("take the annotation off", now, false, types.JSONPatchType, func(types.UID) any {
		return []operation{test, {Op: "remove", Path: test.Path}}
	})
}

// observation is an agent's entry, or its end.
func (p *pair) observation() (string, error, error) {
	node := fmt.Sprint("n", p.choices.of(3))
	o := &v1alpha1.Observation{
		Node: node, NodeUID: "u1", Nonce: fmt.Sprint("w", p.choices.of(3)), Time: metav1.NewTime(time.Unix(1e9+int64(p.choices.of(2)), 0)), LocalMember: "a",
		Linearizable: p.choices.of(2) == 0, Problem: []string{"", "no answer"}[p.choices.of(2)],
	}
	for i := range p.choices.of(3) {
		o.Members = append(o.Members, v1alpha1.MemberStatus{
			ID: v1alpha1.MemberID([]string{"a", "b", "c"}[i]), Name: "etcd", Healthy: p.choices.of(2) == 0, PeerURLs: []string{"https://10.0.0.1:2380"},
		})
	}
	status := map[string]any{}
	if p.choices.chance(6) {
		o = nil
	} else {
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		require.NoError(p.t, err)
		status["observations"] = []any{raw}
	}
	real := p.apply("holdfast/"+node, status)
	played := p.played.applyObservation(p.name, node, o)
	return fmt.Sprintf("observation of %s: %v", node, o), real, played
}

func (p *pair) apply(manager string, status map[string]any) error {
	apply := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	apply.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("EtcdCluster"))
	apply.SetName(p.name)
	return p.real.Status().Apply(p.t.Context(), client.ApplyConfigurationFromUnstructured(apply), client.FieldOwner(manager), client.ForceOwnership)
}

// summary is the leader's apply, with and without numbers.
func (p *pair) summary() (string, error, error) {
	var status v1alpha1.EtcdClusterStatus
	if p.choices.of(2) == 1 {
		n := int32(p.choices.of(3))
		status.Voters, status.MayLose = &n, &n
	}
	status.Conditions = []metav1.Condition{{
		Type: "Visible", Status: metav1.ConditionTrue, Reason: "MemberListConfirmed", Message: fmt.Sprint(p.choices.of(2)), LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0)),
	}}
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.EtcdCluster{Status: status})
	require.NoError(p.t, err)
	applied, _ := raw["status"].(map[string]any)
	_, played := p.played.applySummary(p.name, status)
	return "summary", p.apply("w", applied), played
}

// sweep takes observations out by their place, with tests of who they are.
func (p *pair) sweep(now sides[v1alpha1.EtcdCluster]) (string, error, error) {
	all := now.played.Status.Observations
	if len(all) == 0 {
		return p.observation()
	}
	i := p.choices.of(len(all))
	name := []string{all[i].Node, "somebody"}[p.choices.of(2)]
	return p.patch("sweep", now, true, types.JSONPatchType, func(uid types.UID) any {
		entry := fmt.Sprintf("/status/observations/%d", i)
		return []operation{{"test", "/metadata/uid", uid}, {"test", entry + "/node", name}, {Op: "remove", Path: entry}}
	})
}

// aboutNode makes, labels, marks and deletes the Node, and deletes the EtcdCluster.
func (p *pair) aboutNode() (string, error, error) {
	n := p.played.nodes.objects[p.node]
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.node, Labels: map[string]string{"a": "b"}}}
	if p.choices.of(2) == 1 {
		made.Finalizers = []string{"holdfast.dev/test"}
	}
	switch p.choices.of(5) {
	case 0:
		_, played := p.played.createNode(made)
		return "create a Node", p.real.Create(p.t.Context(), made.DeepCopy()), played
	case 1:
		return "delete the Node", p.real.Delete(p.t.Context(), made), p.played.deleteNode(p.node)
	case 2:
		body := []byte(`{"metadata":{"finalizers":null}}`)
		_, played := p.played.editNode(p.node, func(n *corev1.Node) { n.Finalizers = nil })
		return "take the finalizers off", p.real.Patch(p.t.Context(), made, client.RawPatch(types.MergePatchType, body)), played
	case 3:
		if p.choices.chance(4) {
			c := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
			return "delete the EtcdCluster", p.real.Delete(p.t.Context(), c), p.played.deleteCluster(p.name)
		}
	}
	found := &corev1.Node{}
	if err := p.real.Get(p.t.Context(), client.ObjectKey{Name: p.node}, found); n == nil || err != nil {
		return "no Node to label", client.IgnoreNotFound(err), nil
	}
	wrong := p.choices.chance(3)
	body := func(uid types.UID) []byte {
		if wrong {
			uid = "wrong"
		}
		return fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:"true"}}}`, uid, protect.EtcdMemberLabel)
	}
	real := p.real.Patch(p.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.node}}, client.RawPatch(types.MergePatchType, body(found.UID)))
	_, played := p.played.patchNode(p.node, types.MergePatchType, body(n.UID))
	return fmt.Sprintf("label the Node (wrong UID %t)", wrong), real, played
}
