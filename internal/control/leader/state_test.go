package leader

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func TestAnnouncingNodes(t *testing.T) {
	n := nodeIndex{"n": {Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "cached"}}}}
	_, err := n.announcingNodes(map[string]clusterstore.LiveNode{"n": {Err: errors.New("timeout")}})
	require.ErrorContains(t, err, "timeout", "a node that is missing is taken to be gone")

	gone, err := n.announcingNodes(map[string]clusterstore.LiveNode{"n": {}})
	require.NoError(t, err)
	require.Empty(t, gone, "live reads override the cache")

	cached, err := n.announcingNodes(nil)
	require.NoError(t, err)
	require.Len(t, cached, 1)
}

// An agent announces other clusters in each round. The leader remembers only those of the last one.
func TestWaitingClusters(t *testing.T) {
	var events []string
	l := &Leader{Options: Options{
		MaxClusters: 1, Log: slog.New(slog.DiscardHandler),
		RecordEvent: func(_ *corev1.ObjectReference, _, _, message string) {
			events = append(events, strings.Fields(message)[2])
		},
	}}
	var existing []*v1alpha1.EtcdCluster
	for _, name := range []string{"a1", "a2"} {
		existing = append(existing, &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{membership.MadeForAnnotation: "worker"},
		}})
	}
	for _, id := range []v1alpha1.ClusterID{"b", "b", "c", "b"} {
		worker := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
		worker.Labels = map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue}
		worker.Annotations = map[string]string{
			observation.AnnouncementAnnotation: observation.FormatAnnouncement([]evidence.MemberRef{{Cluster: id, Member: "1"}}),
		}
		require.NoError(t, l.createClusters(t.Context(), existing, l.indexNodes([]*corev1.Node{worker})))
	}
	require.Equal(t, []string{"b,", "c,", "b,"}, events)
}

// TestHasAllAnswers: all bound Nodes that exist must have answered under their own UIDs.
func TestHasAllAnswers(t *testing.T) {
	index := nodeIndex{"n": {Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}}}
	c := &v1alpha1.EtcdCluster{}
	c.Spec.Members = []v1alpha1.Binding{
		{MemberID: "a", Node: "n", NodeUID: "u"}, {MemberID: "b", Node: "gone", NodeUID: "v"},
	}
	for name, answers := range map[string]map[string]types.UID{
		"none": nil, "other node": {"m": "u"}, "other UID": {"n": "v"},
	} {
		require.False(t, hasAllAnswers(clusterstore.ProbeResult{Cluster: c, Answers: answers}, index), name)
	}
	all := clusterstore.ProbeResult{Cluster: c, Answers: map[string]types.UID{"n": "u"}}
	require.True(t, hasAllAnswers(all, index))
}

func TestProbeSubject(t *testing.T) {
	n := nodeIndex{}
	c := &v1alpha1.EtcdCluster{}
	c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n", NodeUID: "u"}}
	c.Observations = []v1alpha1.Observation{{
		Node: "n", NodeUID: "u", Nonce: "1", Linearizable: true, Members: []v1alpha1.MemberStatus{{ID: "a", Healthy: true}},
	}}
	before := subjectOf(c, n, []string{"1", "2"})
	answered := c.DeepCopy()
	answered.Spec.Nonce = "2"
	answered.Observations[0].Nonce, answered.Observations[0].Time = "2", metav1.Now()
	answered.Observations[0].Members[0].Healthy = false
	require.Equal(t, before, subjectOf(answered, n, []string{"1", "2"}),
		"otherwise each probe would cause the next one")

	left := answered.DeepCopy()
	left.Observations[0].Members[0].ID = "b"
	require.NotEqual(t, before, subjectOf(left, n, []string{"1", "2"}))
	left.Observations[0].Nonce = "0"
	require.Equal(t, before, subjectOf(left, n, []string{"1", "2"}), "an old list does not show that a member left")

	emptied := c.DeepCopy()
	emptied.Observations[0].NoMember = true
	require.NotEqual(t, before, subjectOf(emptied, n, []string{"1", "2"}))

	granted := c.DeepCopy()
	granted.Spec.Grants = []v1alpha1.Grant{{NodeUID: "u"}}
	require.NotEqual(t, before, subjectOf(granted, n, []string{"1", "2"}))

	// The end of a drain is noticed at once, and no cordon of an ordinary node is.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
	for labelled, isReason := range map[string]bool{observation.EtcdMemberLabelValue: true, "": false} {
		node.Labels, node.Spec.Unschedulable = map[string]string{observation.EtcdMemberLabel: labelled}, false
		n["n"] = indexedNode{Node: node.DeepCopy()}
		open := subjectOf(c, n, nil)
		node.Spec.Unschedulable = true
		n["n"] = indexedNode{Node: node.DeepCopy()}
		require.Equal(t, isReason, !reflect.DeepEqual(open, subjectOf(c, n, nil)))
	}
}

func TestHealthProofs(t *testing.T) {
	begun := time.Now()
	view := func(node types.UID, nonce string, healthy bool) quorum.View {
		c := &v1alpha1.EtcdCluster{}
		c.Spec.Members = []v1alpha1.Binding{{MemberID: "a", Node: "n", NodeUID: node, Basis: v1alpha1.BasisAddress}}
		c.Observations = []v1alpha1.Observation{{
			Node: "n", NodeUID: node, Nonce: nonce, Linearizable: true, LocalMember: "a",
			Members: []v1alpha1.MemberStatus{{ID: "a", Name: "a", Healthy: healthy}},
		}}
		nodes := map[string]observation.NodeState{"n": {Known: true, UID: node}}
		return quorum.View{Cluster: c, Nonces: []string{"now"}, Nodes: nodes}
	}
	proven, sick, silent, other := view("u", "now", true), view("u", "now", false), view("u", "before", true),
		view("v", "now", true)
	type step struct {
		after time.Duration
		view  quorum.View
	}
	for name, test := range map[string]struct {
		steps []step
		want  time.Duration // start of the series of proofs, -1 if there is none
	}{
		"consecutive proofs":   {[]step{{0, proven}, {time.Minute, proven}, {time.Minute, proven}}, 0},
		"answer without proof": {[]step{{0, proven}, {time.Minute, sick}}, -1},
		"proof after an answer without proof": {
			[]step{{0, proven}, {time.Minute, sick}, {time.Minute, proven}},
			2 * time.Minute,
		},
		"one missing answer": {[]step{{0, proven}, {time.Minute, silent}, {time.Minute, proven}}, 0},
		"lasting silence": {[]step{
			{0, proven},
			{time.Minute, silent},
			{time.Minute, silent},
			{time.Second, silent},
		}, -1},
		"proof after lasting silence": {[]step{
			{0, proven},
			{time.Minute, silent},
			{time.Minute, silent},
			{time.Second, proven},
		}, 121 * time.Second},
		"repeated silence": {[]step{
			{0, proven},
			{110 * time.Second, silent},
			{20 * time.Second, silent},
		}, -1},
		"long time without probes":         {[]step{{0, proven}, {121 * time.Second, proven}}, 121 * time.Second},
		"another Node":                     {[]step{{0, proven}, {time.Minute, other}}, time.Minute},
		"silence without an earlier proof": {[]step{{0, silent}}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := &clusterState{}, begun
			for _, s := range test.steps {
				now = now.Add(s.after)
				m.addProofs(s.view, now, 2*time.Minute)
			}
			row, there := m.proven["a"]
			require.Equal(t, test.want >= 0, there)
			if there {
				require.Equal(t, test.want, row.since.Sub(begun))
			}
		})
	}
}

// F98: a drain was granted by a clock that was ahead, so the grant of a later deletion was taken
// for an old one, and ended.
func TestGrantAge(t *testing.T) {
	now := time.Now()
	m := &clusterState{}
	grant := func(ago time.Duration) v1alpha1.Grant {
		return v1alpha1.Grant{NodeUID: "u", Delete: &v1alpha1.Door{Time: metav1.NewTime(now.Add(-ago))}}
	}
	slow, ahead, fast := grant(time.Hour), grant(-maxAhead), grant(-time.Hour)
	m.noteGrants([]v1alpha1.Grant{slow}, nil, now)
	m.noteGrants([]v1alpha1.Grant{slow}, nil, now.Add(time.Minute))
	require.Equal(t, now, m.openedAt(slow), "the writer's clock is an hour behind")
	m.noteGrants([]v1alpha1.Grant{ahead}, nil, now)
	require.Equal(t, ahead.Delete.Time.Time, m.openedAt(ahead), "the writer's clock is slightly ahead")
	require.Equal(t, fast.Delete.Time.Time, (&clusterState{}).openedAt(fast), "the leader has not read the grant yet")
	m.noteGrants([]v1alpha1.Grant{fast}, nil, now.Add(2*time.Minute))
	require.Equal(t, now.Add(2*time.Minute), m.openedAt(fast),
		"the writer's clock is an hour ahead; its time would keep the grant too long")
	renewed := *fast.DeepCopy()
	renewed.Drain, renewed.Delete.Time = fast.Delete.DeepCopy(), metav1.NewTime(now.Add(2*time.Hour))
	m.noteGrants([]v1alpha1.Grant{renewed}, nil, now.Add(4*time.Minute))
	renewed.Drain = &v1alpha1.Door{Time: metav1.NewTime(now.Add(10 * time.Minute))}
	m.noteGrants([]v1alpha1.Grant{renewed}, nil, now.Add(10*time.Minute))
	require.Equal(t, now.Add(10*time.Minute), m.openedAt(renewed),
		"F98 a door that was opened by a clock ahead hides no later one")
	m.noteGrants(nil, nil, now)
	m.noteGrants([]v1alpha1.Grant{slow}, nil, now.Add(3*time.Minute))
	require.Equal(t, now.Add(3*time.Minute), m.openedAt(slow),
		"a grant that was removed and written again is new")
}

func TestIgnoredObservations(t *testing.T) {
	registry, log := prometheus.NewRegistry(), &bytes.Buffer{}
	m := &metrics{}
	l := &Leader{Options: Options{Log: slog.New(slog.NewTextHandler(log, nil))}.withDefaults(), metrics: m}
	require.NoError(t, registry.Register(m))
	c := &v1alpha1.EtcdCluster{}
	c.Name, c.UID = "c1", "u"
	c.Observations = []v1alpha1.Observation{
		{Node: "liar", NodeUID: "l", Nonce: "n", LocalMember: "0"},
		{Node: "new", NodeUID: "n"},
	}
	l.keepStates([]*v1alpha1.EtcdCluster{c})
	counted := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		counts := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "holdfast_webhook_observations_ignored" {
				continue
			}
			for _, metric := range family.GetMetric() {
				if v := metric.GetGauge().GetValue(); v != 0 {
					counts[metric.GetLabel()[0].GetValue()] = v
				}
			}
		}
		return counts
	}
	for range 2 {
		m.set(&roundResult{ignored: l.countIgnored([]*v1alpha1.EtcdCluster{c})})
		require.Equal(t, map[string]float64{
			string(observation.NotBound): 2, string(observation.Invalid): 1,
			string(observation.NeverAsked): 1,
		}, counted())
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), "%s", log)
	require.Contains(t, log.String(),
		`etcd_cluster=c1 ignored="liar Invalid, liar NotBound, new NeverAsked, new NotBound"`)
	c.Observations = nil
	m.set(&roundResult{ignored: l.countIgnored([]*v1alpha1.EtcdCluster{c})})
	require.Empty(t, counted())
}

func TestBoundCondition(t *testing.T) {
	claim := func(node string, member v1alpha1.MemberID, reason string) membership.Refusal {
		return membership.Refusal{Node: node, Member: member, Reason: reason}
	}
	bound := []v1alpha1.Binding{{MemberID: "a", Node: "n", NodeUID: "u"}}
	for name, test := range map[string]struct {
		bindings []v1alpha1.Binding
		refused  []membership.Refusal
		status   metav1.ConditionStatus
		reason   string
		message  string
	}{
		"bound":   {bound, nil, metav1.ConditionTrue, "MembersBound", "1 member bound to a Node"},
		"nothing": {nil, nil, metav1.ConditionFalse, "NothingAnnounced", "no Node announces a member"},
		"not bound": {
			nil,
			[]membership.Refusal{claim("n1", "a", "too few"), claim("n2", "b", "too few")},
			metav1.ConditionFalse,
			"NotBound", "not bound: the claim of node n1 to member a, of node n2 to member b: too few",
		},
		"refused": {
			bound,
			[]membership.Refusal{claim("n1", "a", "it is bound"), claim("n2", "b", "unlisted")},
			metav1.ConditionFalse,
			"ClaimRefused", "not bound: the claim of node n1 to member a: it is bound; " +
				"not bound: the claim of node n2 to member b: unlisted",
		},
		"long": {
			bound,
			[]membership.Refusal{claim("n1", "a", strings.Repeat("x", 1<<16))},
			metav1.ConditionFalse, "ClaimRefused",
			"not bound: the claim of node n1 to member a: xxx",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := boundConditionOf(test.bindings, test.refused, "")
			require.Equal(t, test.status, c.Status)
			require.Equal(t, test.reason, c.Reason)
			require.True(t, strings.HasPrefix(c.Message, test.message), c.Message)
			require.LessOrEqual(t, len(c.Message), maxConditionMessage+len("…"))
		})
	}
}
