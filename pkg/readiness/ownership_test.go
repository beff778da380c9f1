package readiness

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owns enters a field manager as the API server does.
func owns(manager, subresource, fields string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
		})
	}
}

// TestACordonThatHasBecomeSomebodyElsesStays: a person opens a held node and closes it again while no agent looks. The bit
// is as it was and the record too; whose it is now only the API server's book-keeping says.
func TestACordonThatHasBecomeSomebodyElsesStays(t *testing.T) {
	const bit = `{"f:spec":{"f:unschedulable":{}}}`
	for name, c := range map[string]struct {
		owner func(*corev1.Node)
		by    string
	}{
		"nobody's, as the policy leaves it":    {func(*corev1.Node) {}, ""},
		"the agent's":                          {owns(FieldManager, "", bit), ""},
		"a person's":                           {owns("kubectl", "", bit), "kubectl"},
		"who wrote the record with it":         {owns("policy", "", `{"f:metadata":{"f:annotations":{"f:holdfast.dev/hold":{}}},"f:spec":{"f:unschedulable":{}}}`), ""},
		"other fields are a person's":          {owns("kubectl", "", `{"f:metadata":{"f:annotations":{"f:x/f:unschedulable":{}}},"f:spec":{"f:taints":{}}}`), ""},
		"a status of that name":                {owns("kubelet", "status", bit), ""},
		"book-keeping that cannot be read":     {owns("kubectl", "", `{"f:spec":["f:unschedulable"`), ""},
		"book-keeping that has been taken off": {func(n *corev1.Node) { n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ours := conditioned(corev1.NodeNetworkUnavailable, corev1.ConditionTrue, HeldByHoldfast)
			n := node(recorded(Held, thisBoot, NewNode), cordoned, ours, c.owner)
			for _, facts := range []Facts{ready(), closed()} {
				d := Decide(n, facts, Policy{}, noon())
				if c.by == "" {
					require.NotEqual(t, EventOverridden, d.Reason)
					require.False(t, d.Record != nil && d.Record.State == Overridden)
					continue
				}
				require.Nil(t, d.Unschedulable, "it is not ours to lift")
				require.Equal(t, Overridden, d.Record.State)
				require.Equal(t, corev1.ConditionFalse, d.Conditions[1].Status)
				require.Contains(t, d.Event.Message, "the cordon that stands is not Holdfast's, kubectl set it")
			}
		})
	}
	d := Decide(node(recorded(Held, thisBoot, NewNode), owns("kubectl", "", bit)), closed(), Policy{}, noon())
	require.NotContains(t, d.Event.Message, "cordon that stands")
}

func TestMarksForAutoscalersComeAndGoWithTheHold(t *testing.T) {
	all := slices.Sorted(maps.Keys(scaleDownMarks()))
	policy := Policy{HoldUnrecorded: true}
	d := Decide(node(annotated(escalatorAnnotation, "mine")), closed(), policy, noon())
	require.Equal(t, slices.DeleteFunc(slices.Clone(all), func(k string) bool { return k == escalatorAnnotation }), d.Record.Marks)
	require.NotContains(t, d.Annotations, escalatorAnnotation, "somebody has set it")
	require.Equal(t, "true", *d.Annotations[clusterAutoscalerAnnotation])
	require.Equal(t, "true", *d.Annotations[karpenterAnnotation])

	held := node(cordoned, holding(*d.Record), annotated(escalatorAnnotation, "mine"), annotated(clusterAutoscalerAnnotation, "true"), annotated(karpenterAnnotation, "false"))
	require.Empty(t, Decide(held, closed(), policy, noon()).Annotations, "one that somebody takes off stays off")
	for name, c := range map[string]struct {
		n     *corev1.Node
		facts Facts
	}{
		"release":  {held, ready()},
		"override": {func() *corev1.Node { n := clone(held); n.Spec.Unschedulable = false; return n }(), closed()},
	} {
		d := Decide(c.n, c.facts, policy, noon())
		require.Equal(t, map[string]*string{clusterAutoscalerAnnotation: nil}, d.Annotations, "%s: one that somebody has changed is theirs", name)
		require.Empty(t, d.Record.Marks, name)
	}
	d = Decide(node(cordoned, holding(Record{State: Held, BootID: thisBoot, Marks: []string{"dedicated", HoldAnnotation}}), annotated("dedicated", "true")), ready(), policy, noon())
	require.Empty(t, d.Annotations, "what else stands in the record is no leave to touch anything")

	d = Decide(node(cordoned, holding(Record{State: Held, BootID: thisBoot, Marks: all}), annotated(clusterAutoscalerAnnotation, "true"), tainted("medik8s.io/drain")), ready(), policy, noon())
	require.Empty(t, d.Annotations, "while the hold stands for somebody, they stand too")
}

// TestMarksStayUntilSomebodyHasLookedForEtcd follows holds that end while nobody can say whether the node holds etcd: the
// end does not wait for that, and the marks do.
func TestMarksStayUntilSomebodyHasLookedForEtcd(t *testing.T) {
	all := slices.Sorted(maps.Keys(scaleDownMarks()))
	marked := func(n *corev1.Node) { maps.Copy(n.Annotations, scaleDownMarks()) }
	held := holding(Record{State: Held, BootID: thisBoot, Reason: NewNode, Marks: all})
	p := patience()
	p.Release = true
	unseen, agent := with(func(f *Facts) { f.Etcd = Unknown }), func(n *corev1.Node) Decision {
		return Decide(n, with(func(f *Facts) { f.Etcd = Unknown }), Policy{}, noon())
	}
	leader := func(n *corev1.Node) Decision { return Attend(n, time.Hour, p, noon()).Decision }
	for name, c := range map[string]struct {
		node *corev1.Node
		ends func(*corev1.Node) Decision
	}{
		"released":                           {node(held, marked, cordoned), agent},
		"opened by somebody":                 {node(held, marked), agent},
		"left cordoned":                      {node(held, marked, cordoned, annotated(KeepCordonedAnnotation, "")), agent},
		"given up by the leader":             {node(held, marked, cordoned), leader},
		"given up, the last word is unknown": {node(held, marked, cordoned, conditioned(etcdMemberCondition, corev1.ConditionUnknown, "NotKnown")), leader},
		"opened by somebody, without agent":  {node(held, marked), leader},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.ends(c.node)
			require.NotEqual(t, Held, d.Record.State)
			require.False(t, d.Held)
			_, ended := write(c.node, d, func(*corev1.Node) {})
			ended, err := settle(&world{facts: unseen}, ended, func(*corev1.Node) {})
			require.NoError(t, err)
			require.Equal(t, all, Lent(ended.Annotations))

			_, clean := write(ended, Decide(ended, ready(), Policy{}, noon()), func(*corev1.Node) {})
			require.Equal(t, []string{HoldAnnotation}, slices.DeleteFunc(slices.Sorted(maps.Keys(clean.Annotations)), func(k string) bool { return k == KeepCordonedAnnotation }))
			require.Empty(t, Lent(clean.Annotations))
			require.Nil(t, Decide(clean, ready(), Policy{}, noon()).Record)

			rebooted := with(func(f *Facts) { f.Etcd, f.BootID, f.Subnet.Presence = Unknown, otherBoot, Absent })
			if d := Decide(ended, rebooted, Policy{}, noon()); d.Held {
				require.Equal(t, all, d.Record.Marks, "the next hold has them as its own")
			}

			member := clone(ended)
			member.Annotations[etcdMarksAnnotation] = "x," + karpenterAnnotation
			for _, etcd := range []Presence{Unknown, Absent, Present} {
				d := Decide(member, with(func(f *Facts) { f.Etcd = etcd }), Policy{}, noon())
				require.NotContains(t, d.Annotations, karpenterAnnotation, "it guards a member now")
				require.NotContains(t, d.Record.Marks, karpenterAnnotation)
				require.Equal(t, etcd == Absent, len(d.Record.Marks) == 0)
			}
		})
	}
	member := node(held, marked, cordoned, annotated(etcdMarksAnnotation, karpenterAnnotation), conditioned(etcdMemberCondition, corev1.ConditionFalse, "NoMember"))
	d := leader(member)
	require.NotContains(t, d.Annotations, karpenterAnnotation, "nor does the leader take off what guards a member")
	require.Contains(t, d.Annotations, clusterAutoscalerAnnotation)
}

// TestAnUnreadableRecordLeavesNothingBehind: what is to be done by hand is all said.
func TestAnUnreadableRecordLeavesNothingBehind(t *testing.T) {
	broken := annotated(HoldAnnotation, "held")
	byTaint := Policy{TaintKey: holdTaint}
	for name, c := range map[string]struct {
		n      *corev1.Node
		policy Policy
		want   []string
	}{
		"bare": {node(broken, cordoned), Policy{}, []string{"kubectl annotate node n1 holdfast.dev/hold-", "kubectl uncordon n1"}},
		"with marks": {
			node(broken, cordoned, annotated(escalatorAnnotation, scaleDownMarks()[escalatorAnnotation]), annotated(karpenterAnnotation, "true"), annotated(castAIAnnotation, "yes")),
			Policy{},
			[]string{"kubectl annotate node n1 holdfast.dev/hold-", "kubectl annotate node n1 atlassian.com/no-delete- karpenter.sh/do-not-disrupt-", "kubectl uncordon n1"},
		},
		"with marks of a member": {
			node(broken, cordoned, annotated(karpenterAnnotation, "true"), annotated(etcdMarksAnnotation, karpenterAnnotation)),
			Policy{},
			[]string{"kubectl annotate node n1 holdfast.dev/hold-", "kubectl uncordon n1"},
		},
		"by taint":                       {node(broken, tainted(holdTaint)), byTaint, []string{"kubectl annotate node n1 holdfast.dev/hold-", "kubectl taint node n1 readiness.k8s.io/holdfast:NoSchedule-"}},
		"by another taint, or by cordon": {node(broken, cordoned), byTaint, []string{"kubectl annotate node n1 holdfast.dev/hold-", "kubectl uncordon n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.n, ready(), c.policy, noon())
			var commands []string
			for i, part := range strings.Split(d.Message, "`") {
				if i%2 == 1 {
					commands = append(commands, part)
				}
			}
			require.Equal(t, c.want, commands)
			require.Nil(t, d.Record)
			require.Empty(t, d.Annotations)
		})
	}
}

// TestNoClockDecides: the time is written down and nothing else, by the agent and by the leader.
func TestNoClockDecides(t *testing.T) {
	p := patience()
	p.Release = true
	for w := range worlds() {
		if w.keep || w.exempt || w.marked {
			continue
		}
		for how, decide := range map[string]func(now time.Time) Decision{
			"agent":  func(now time.Time) Decision { return Decide(w.node, w.facts, w.policy, now) },
			"leader": func(now time.Time) Decision { return Attend(w.node, p.Hold, p, now).Decision },
		} {
			a, b := decide(noon()), decide(noon().AddDate(-50, 0, 0))
			for _, r := range []*Record{a.Record, b.Record} {
				if r != nil {
					r.Since = time.Time{}
				}
			}
			require.Equal(t, a, b, "%s: %s", how, w.name)
		}
	}
}
