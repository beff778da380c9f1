package report_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// node returns Node i of quorumtest, as its agent and its kubelet write it.
func node(i int) corev1.Node {
	announced := []evidence.MemberRef{{Cluster: quorumtest.ClusterID, Member: quorumtest.ID(i)}}
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: quorumtest.Node(i), UID: quorumtest.UID(i),
			Labels: map[string]string{
				observation.EtcdMemberLabel: observation.EtcdMemberLabelValue, observation.RoleLabels()[0]: "",
			},
			Annotations: map[string]string{observation.AnnouncementAnnotation: observation.FormatAnnouncement(announced)},
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: quorumtest.Address(i)}},
			Conditions: []corev1.NodeCondition{{
				Type: observation.EtcdMemberCondition, Status: corev1.ConditionTrue, Reason: "SystemdUnit",
				Message: "etcd member " + string(quorumtest.ID(i)),
			}},
		},
	}
}

// worker returns a Node without etcd.
func worker(name string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u-" + "worker"}}
}

// stateOf returns the state with this cluster, and a Node for each of its first n members.
func stateOf(c *quorumtest.Cluster, n int) report.State {
	c.Cluster.Spec.Nonce = quorumtest.Nonce
	s := report.State{Clusters: []v1alpha1.EtcdCluster{*c.Cluster}, Now: quorumtest.Noon().Add(time.Minute)}
	for i := range n {
		s.Nodes = append(s.Nodes, node(i))
	}
	return s
}

// changed returns the state after a change, if there is one.
func changed(s report.State, change func(*report.State)) report.State {
	if change != nil {
		change(&s)
	}
	return s
}

func flagsUnread(s *report.State) { s.FlagsProblem = "forbidden" }

func held(since time.Time) corev1.Node {
	n := worker("held")
	n.Spec.Unschedulable = true
	record := readiness.Record{State: readiness.Held, Reason: readiness.NewNode, Since: since}
	n.Annotations = map[string]string{readiness.HoldAnnotation: record.Format()}
	return n
}

// TestWarnings checks each kind of warning, and that a healthy cluster has none.
func TestWarnings(t *testing.T) {
	voters := quorumtest.Voters
	holding := func(age, limit time.Duration) func(*report.State) {
		return func(s *report.State) { s.Nodes, s.StuckHoldAfter = append(s.Nodes, held(s.Now.Add(-age))), limit }
	}
	inZones := func(s *report.State) { *s = inZone(inZone(inZone(*s, 0, "a"), 1, "a"), 3, "b") }
	grantedLongAgo := func(s *report.State) {
		s.Clusters[0].Spec.Grants[0].Delete.Time = metav1.NewTime(s.Now.Add(-2 * time.Hour))
	}
	announcing := func(s *report.State) {
		s.Nodes[3].Annotations = map[string]string{"holdfast.dev/etcd": `[{"cluster":"eee1","member":"1"}]`}
	}
	seen := map[report.WarningKind]bool{}
	for name, c := range map[string]struct {
		cluster *quorumtest.Cluster
		nodes   int
		change  func(*report.State)
		want    string
	}{
		"healthy":                     {voters(3), 3, nil, ""},
		"no tolerance":                {voters(3).Unhealthy(1), 3, nil, "NoTolerance"},
		"no quorum":                   {voters(3).Unhealthy(0, 1), 3, nil, "NoTolerance"},
		"cannot see":                  {voters(3).Silent(0, 1, 2), 3, nil, "CannotSee"},
		"zone holds a quorum":         {voters(3), 4, inZones, "ZoneHoldsQuorum, UnknownMember"},
		"ghost member":                {voters(5).Unprovable(4), 4, nil, "GhostMember"},
		"node gone":                   {voters(5), 4, nil, "NodeGone"},
		"lists differ":                {voters(5).RemovedFrom(2, 4), 5, nil, "ListsDiffer"},
		"silent agent":                {old(voters(5), 3), 5, nil, "SilentAgent"},
		"never heard":                 {withoutObservation(voters(5), 3), 5, nil, "SilentAgent"},
		"ignored":                     {voters(5).Basis(v1alpha1.BasisClaim, 4), 5, nil, "IgnoredObservation"},
		"corrupt":                     {alarmed(voters(5)), 5, nil, "Alarm"},
		"unbound claim":               {unbound(voters(3)), 3, nil, "UnboundClaims"},
		"old grant":                   {voters(5).Granted(4), 5, grantedLongAgo, "OldGrant"},
		"young grant":                 {voters(5).Granted(4), 5, nil, ""},
		"long hold":                   {voters(3), 3, holding(time.Hour, 0), "LongHold"},
		"long hold, later limit":      {voters(3), 3, holding(time.Hour, 2*time.Hour), ""},
		"short hold":                  {voters(3), 3, holding(time.Minute, 0), ""},
		"flags not read":              {voters(3), 3, flagsUnread, "FlagsUnknown"},
		"label without a member":      {voters(3), 4, nil, "UnknownMember"},
		"announced without an object": {voters(3), 4, announcing, "NoEtcdCluster, UnknownMember"},
	} {
		t.Run(name, func(t *testing.T) {
			s := changed(stateOf(c.cluster, c.nodes), c.change)
			var kinds []string
			for _, w := range report.NewStatus(s).Warnings {
				require.NotEmpty(t, w.About)
				require.NotEmpty(t, w.Text)
				seen[w.Kind] = true
				kinds = append(kinds, string(w.Kind))
			}
			require.Equal(t, c.want, strings.Join(slices.Compact(kinds), ", "))
		})
	}
	require.Len(t, seen, 15, "a kind of warning has no case")
}

// TestBornHeld: a policy holds a Node from its creation, and no agent has run on it since then.
func TestBornHeld(t *testing.T) {
	s := stateOf(quorumtest.Voters(3), 3)
	born := held(time.Time{})
	born.CreationTimestamp = metav1.NewTime(s.Now.Add(-time.Hour))
	s.Nodes = append(s.Nodes, born)
	status := report.NewStatus(s)
	require.NotNil(t, status.Holds[0].Since)
	require.Equal(t, born.CreationTimestamp.UTC(), *status.Holds[0].Since)
	require.Equal(t, report.WarnLongHold, status.Warnings[0].Kind)
	require.Contains(t, status.Warnings[0].Text, "node held has been held for 60m")
}

// TestUnreadableHold: Holdfast leaves such a Node alone, also if it is cordoned.
func TestUnreadableHold(t *testing.T) {
	s := stateOf(quorumtest.Voters(3), 3)
	n := worker("broken")
	n.Spec.Unschedulable = true
	n.Annotations = map[string]string{readiness.HoldAnnotation: "{"}
	s.Nodes = append(s.Nodes, n)
	require.Equal(t, []report.HoldStatus{{Node: "broken", Reason: readiness.RecordUnreadable}}, report.NewStatus(s).Holds)
}

// TestGrantOfEarlierNode: the Node of a grant is gone. Another one may have its name, and then its
// page has the grant. Otherwise no page exists.
func TestGrantOfEarlierNode(t *testing.T) {
	s := stateOf(quorumtest.Voters(5).Granted(4), 4)
	s.Clusters[0].Spec.Grants[0].Delete.Time = metav1.NewTime(s.Now.Add(-2 * time.Hour))
	var texts []string
	for _, w := range report.NewStatus(s).Warnings {
		if w.Kind == report.WarnOldGrant {
			texts = append(texts, w.Text)
		}
	}
	require.Len(t, texts, 1)
	require.NotContains(t, texts[0], "kubectl holdfast why")
	require.Contains(t, texts[0], "each of its members has left the member list")

	again := node(4)
	again.UID = "again"
	s.Nodes = append(s.Nodes, again)
	page, _ := report.NewPage(s, again.Name, report.Removal{Answer: quorum.Unknown})
	require.Contains(t, page.Text(), "earlier Node of this name: the deletion by ")

	s.Clusters[0].Spec.Grants[0].Delete = nil
	require.Len(t, report.NewStatus(s).Clusters[0].Grants[0].Doors, 1, "a grant of an earlier version")
}

// TestNoAdviceAgainstData has member b, whose own agent finds its server or its data: no report
// about another Node advises its removal.
func TestNoAdviceAgainstData(t *testing.T) {
	for name, c := range map[string]*quorumtest.Cluster{
		"stopped": quorumtest.Voters(3).Unhealthy(1), "two stopped": quorumtest.Voters(3).Unhealthy(1, 2),
		"not bound": quorumtest.Voters(3).Unhealthy(1).Unbound(1), "of five": quorumtest.Voters(5).Unhealthy(1).Unbound(1),
		"without a list": quorumtest.Voters(3).WithoutList(0, 2).Unhealthy(1),
	} {
		t.Run(name, func(t *testing.T) {
			for _, text := range textsOf(t, stateOf(c, 3), "") {
				if !strings.HasPrefix(text, "after the deletion of node w2") {
					require.NotRegexp(t, `member remove b|kubectl delete node|[Dd]elete (that|the) Node`, text)
				}
			}
		})
	}
}

func old(c *quorumtest.Cluster, i int) *quorumtest.Cluster {
	c.Observer(i).Time = metav1.NewTime(quorumtest.Noon().Add(-observation.SilentAfter))
	return c
}

func withoutObservation(c *quorumtest.Cluster, i int) *quorumtest.Cluster {
	all := c.Cluster.Observations
	c.Cluster.Observations = slices.DeleteFunc(all, func(o v1alpha1.Observation) bool {
		return o.Node == quorumtest.Node(i)
	})
	return c
}

func alarmed(c *quorumtest.Cluster) *quorumtest.Cluster {
	return c.Everywhere(4, func(m *v1alpha1.MemberStatus) { m.Alarms = []string{"NOSPACE"} })
}

func unbound(c *quorumtest.Cluster) *quorumtest.Cluster {
	c.Cluster.Status.Conditions = []metav1.Condition{{
		Type: quorum.BoundCondition, Status: metav1.ConditionFalse, Reason: "Waiting", Message: "two nodes claim member d",
	}}
	return c
}

// The answers of the status are those of the webhook: old observations prove nothing.
func TestStatusMayGo(t *testing.T) {
	answers := func(s report.State) string {
		var all []string
		for _, m := range report.NewStatus(s).Clusters[0].Members {
			all = append(all, string(m.MayGo))
		}
		return strings.Join(all, " ")
	}
	require.Equal(t, "yes yes yes", answers(stateOf(quorumtest.Voters(3), 3)))
	require.Equal(t, "no yes no", answers(stateOf(quorumtest.Voters(3).Unhealthy(1), 3)))
	require.Equal(t, "unknown unknown unknown", answers(stateOf(quorumtest.Voters(3).Silent(0, 1, 2), 3)))
	s := stateOf(quorumtest.Voters(3), 3)
	s.Now = s.Now.Add(observation.SilentAfter)
	require.Equal(t, "unknown unknown unknown", answers(s))
	gone := stateOf(quorumtest.Voters(3), 2)
	require.Equal(t, "no no ", answers(gone), "the member of a Node that is gone counts as lost")
}

func TestEmptyStatus(t *testing.T) {
	status := report.NewStatus(report.State{Nodes: []corev1.Node{worker("w9")}})
	require.Equal(t, report.Status{
		Version: 1, Kind: "Status", Clusters: []report.ClusterStatus{}, Holds: []report.HoldStatus{},
		Warnings: []report.Warning{},
	}, status)
}

func TestAge(t *testing.T) {
	now := quorumtest.Noon()
	require.Equal(t, "2m30s", report.Age(now.Add(-150*time.Second), now))
	require.Equal(t, "0s", report.Age(now.Add(time.Minute), now))
}
