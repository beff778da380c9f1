package readiness

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
)

func TestParseRecord(t *testing.T) {
	since := time.Date(2026, 8, 1, 10, 0, 0, 0, time.UTC)
	allFields := Record{State: Held, BootID: "b1", Since: since, Reason: NewNode, Taint: "example.com/wait"}
	for name, c := range map[string]struct {
		value string
		want  Record
		err   string
	}{
		"all fields": {
			`{"state":"held","bootID":"b1","since":"2026-08-01T10:00:00Z","reason":"NewNode","taint":"example.com/wait"}`,
			allFields, "",
		},
		"written by the born-held policy": {
			`{"state":"held","bootID":"b1","reason":"NewNode"}`, Record{State: Held, BootID: "b1", Reason: NewNode}, "",
		},
		"another time zone": {
			`{"state":"released","since":"2026-08-01T12:00:00.7+02:00"}`, Record{State: Released, Since: since}, "",
		},
		"field of a later version": {`{"state":"overridden","by":"someone"}`, Record{State: Overridden}, ""},
		"empty":                    {``, Record{}, "unexpected end"},
		"null":                     {`null`, Record{}, "state"},
		"word":                     {`held`, Record{}, "invalid character"},
		"state of a later version": {`{"state":"waiting"}`, Record{}, "waiting"},
		"trailing text":            {`{"state":"held"} x`, Record{}, "after top-level value"},
		"invalid time":             {`{"state":"held","since":"yesterday"}`, Record{}, "yesterday"},
		"year 10000":               {`{"state":"held","since":"9999-12-31T23:59:59-01:00"}`, Record{}, "since"},
		"year -1":                  {`{"state":"held","since":"0000-01-01T00:00:00+01:00"}`, Record{}, "since"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseRecord(c.value)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add(`{"state":"held","bootID":"b1","since":"2026-08-01T10:00:00Z","reason":"NewNode","taint":"k"}`)
	f.Add(`{"state":"held","marks":["karpenter.sh/do-not-disrupt"],"networkUp":"CalicoIsUp","networkBuilt":true}`)
	f.Add(`{"state":"held","bootID":"b2","reason":"NewNode","firstBootID":"b1","networkUp":"FlannelIsUp"}`)
	f.Add(`{"state":"released","since":"0000-01-01T00:00:00+24:00","marks":[]}`)
	f.Add(`{"STATE":"released","since":"0000-01-01T00:00:00+24:00"}`)
	f.Add(`{"STATE":"released","since":"9999-12-31T23:59:59+24:00"}`)
	f.Add("{\"state\":\"overridden\",\"bootID\":\"\xff\"}")
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, value string) {
		r, err := ParseRecord(value)
		if err != nil {
			require.Equal(t, Record{}, r, "no record is returned with an error")
			return
		}
		require.Contains(t, []State{Held, Released, Overridden}, r.State)
		again, err := ParseRecord(r.Format())
		require.NoError(t, err)
		require.Equal(t, r.Format(), again.Format())
	})
}

// TestCordonOwner: a person uncordons a held node and cordons it again between two runs of the
// agent. Cordon and record are unchanged; only managedFields shows the new owner.
func TestCordonOwner(t *testing.T) {
	const cordon = `{"f:spec":{"f:unschedulable":{}}}`
	const withRecord = `{"f:metadata":{"f:annotations":{"f:holdfast.dev/hold":{}}},"f:spec":{"f:unschedulable":{}}}`
	const otherFields = `{"f:metadata":{"f:labels":{"f:unschedulable":{}}},"f:spec":{"f:taints":{}}}`
	removed := func(n *corev1.Node) { n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}} }
	bornHeld := recorded(Held, thisBoot, NewNode)
	for name, c := range map[string]struct {
		owner nodeOption
		by    string
	}{
		"no owner, by the policy":  {unchanged, ""},
		"agent":                    {owned(FieldManager, "", cordon), ""},
		"person":                   {owned("kubectl", "", cordon), "kubectl"},
		"later format":             {owned("kubectl", "", `{"f:spec":{"f:unschedulable":{}},"f:metadata":7}`), ""},
		"record in the same write": {owned("policy", "", withRecord), ""},
		"other fields":             {owned("kubectl", "", otherFields), ""},
		"merged entries":           {owned("ancient-changes", "", cordon), ""},
		"status":                   {owned("kubelet", "status", cordon), ""},
		"unreadable managedFields": {owned("kubectl", "", `{"f:spec":["f:unschedulable"`), ""},
		"removed managedFields":    {removed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(bornHeld, cordoned, unavailable(HeldByHoldfast), c.owner)
			for _, facts := range []Facts{readyFacts(), closedFacts()} {
				d := Decide(n, facts, Policy{}, noon())
				if c.by == "" {
					require.NotEqual(t, EventOverridden, d.Reason)
					require.False(t, d.Record != nil && d.Record.State == Overridden)
					continue
				}
				require.Nil(t, d.Unschedulable, "the cordon belongs to another client")
				require.Equal(t, Overridden, d.Record.State)
				require.Equal(t, corev1.ConditionFalse, d.Conditions[1].Status)
				require.Contains(t, d.Event.Message, "the remaining cordon was set by kubectl, not by Holdfast")
			}
		})
	}
	d := Decide(node(bornHeld, owned("kubectl", "", cordon)), closedFacts(), Policy{}, noon())
	require.NotContains(t, d.Event.Message, "remaining cordon")
}

func TestMarks(t *testing.T) {
	all := autoscaler.Keys()
	policy := Policy{HoldUnrecorded: true}
	foreign := annotated(autoscaler.Escalator, "mine")
	d := Decide(node(foreign), closedFacts(), policy, noon())
	isForeign := func(key string) bool { return key == autoscaler.Escalator }
	require.Equal(t, slices.DeleteFunc(slices.Clone(all), isForeign), d.Record.Marks)
	require.NotContains(t, d.Annotations, autoscaler.Escalator, "another client has set it")
	require.Equal(t, "true", *d.Annotations[autoscaler.ClusterAutoscaler])
	require.Equal(t, "true", *d.Annotations[autoscaler.Karpenter])

	mine := node(cordoned, recorded(Held, thisBoot, NewNode), annotated(autoscaler.Karpenter, "true"))
	require.Empty(t, Decide(mine, readyFacts(), policy, noon()).Annotations, "another client has set it before")

	scaleDownMark := annotated(autoscaler.ClusterAutoscaler, "true")
	held := node(cordoned, recordedAs(*d.Record), foreign, scaleDownMark, annotated(autoscaler.Karpenter, "false"))
	require.Empty(t, Decide(held, closedFacts(), policy, noon()).Annotations, "a removed mark is not restored")
	uncordoned := clone(held)
	uncordoned.Spec.Unschedulable = false
	for name, d := range map[string]Decision{
		"release":  Decide(held, readyFacts(), policy, noon()),
		"override": Decide(uncordoned, closedFacts(), policy, noon()),
	} {
		require.Equal(t, map[string]*string{autoscaler.ClusterAutoscaler: nil}, d.Annotations, "%s keeps changed marks", name)
		require.Empty(t, d.Record.Marks, name)
	}
	unknown := recordedAs(Record{State: Held, BootID: thisBoot, Marks: []string{"dedicated", HoldAnnotation}})
	d = Decide(node(cordoned, unknown, annotated("dedicated", "")), readyFacts(), policy, noon())
	require.Empty(t, d.Annotations, "other keys in the record are ignored")

	marked := recordedAs(Record{State: Held, BootID: thisBoot, Marks: all})
	d = Decide(node(cordoned, marked, scaleDownMark, tainted("medik8s.io/drain")), readyFacts(), policy, noon())
	require.Empty(t, d.Annotations, "the marks stay while the hold waits for another component")
}

// TestMarksWaitForEtcdScan follows holds that end before it is known whether the node has
// etcd. The end of the hold does not wait for the scan, but its marks do.
func TestMarksWaitForEtcdScan(t *testing.T) {
	all := autoscaler.Keys()
	marked := func(n *corev1.Node) { maps.Copy(n.Annotations, autoscalerAnnotations()) }
	held := recordedAs(Record{State: Held, BootID: thisBoot, Reason: NewNode, Marks: all})
	unscanned := readyFactsWith(func(f *Facts) { f.Etcd = Unknown })
	agent := func(n *corev1.Node) Decision { return Decide(n, unscanned, Policy{}, noon()) }
	leader := func(n *corev1.Node) Decision {
		return CheckHold(n, ofAge(time.Hour), releasingLimits(), noon()).Decision
	}
	keep := annotated(KeepCordonedAnnotation, "")
	etcdUnknown := conditioned(etcdMemberCondition, corev1.ConditionUnknown, "NotKnown")
	for name, c := range map[string]struct {
		node *corev1.Node
		ends func(*corev1.Node) Decision
	}{
		"released":                   {node(held, marked, cordoned), agent},
		"uncordoned":                 {node(held, marked), agent},
		"left cordoned":              {node(held, marked, cordoned, keep), agent},
		"given up by the leader":     {node(held, marked, cordoned), leader},
		"given up, etcd unknown":     {node(held, marked, cordoned, etcdUnknown), leader},
		"uncordoned, without agents": {node(held, marked), leader},
	} {
		t.Run(name, func(t *testing.T) {
			d := c.ends(c.node)
			require.NotEqual(t, Held, d.Record.State)
			require.False(t, d.Held)
			ended, err := settle(writeAll(c.node, d), unscanned, Policy{}, unchanged)
			require.NoError(t, err)
			require.Equal(t, all, OwnedAutoscalerAnnotations(ended.Annotations))

			clean := writeAll(ended, Decide(ended, readyFacts(), Policy{}, noon()))
			left := maps.Clone(clean.Annotations)
			delete(left, KeepCordonedAnnotation)
			require.Equal(t, []string{HoldAnnotation}, slices.Sorted(maps.Keys(left)))
			require.Empty(t, OwnedAutoscalerAnnotations(clean.Annotations))
			require.Nil(t, Decide(clean, readyFacts(), Policy{}, noon()).Record)

			rebooted := readyFactsWith(func(f *Facts) { f.Etcd, f.BootID, f.Subnet.Presence = Unknown, otherBoot, Absent })
			if d := Decide(ended, rebooted, Policy{}, noon()); d.Held {
				require.Equal(t, all, d.Record.Marks, "the next hold owns the marks")
			}

			member := clone(ended)
			member.Annotations[etcdMarksAnnotation] = "x," + autoscaler.Karpenter
			for _, etcd := range []Presence{Unknown, Absent, Present} {
				d := Decide(member, readyFactsWith(func(f *Facts) { f.Etcd = etcd }), Policy{}, noon())
				require.NotContains(t, d.Annotations, autoscaler.Karpenter, "the mark guards a member now")
				require.NotContains(t, d.Record.Marks, autoscaler.Karpenter)
				require.Equal(t, etcd == Absent, len(d.Record.Marks) == 0)
			}
		})
	}
	noMember := conditioned(etcdMemberCondition, corev1.ConditionFalse, "NoMember")
	d := leader(node(held, marked, cordoned, annotated(etcdMarksAnnotation, autoscaler.Karpenter), noMember))
	require.NotContains(t, d.Annotations, autoscaler.Karpenter, "the leader also keeps a mark that guards a member")
	require.Contains(t, d.Annotations, autoscaler.ClusterAutoscaler)
}
