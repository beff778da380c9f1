package spc_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

func noon() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }

// matching is a node at the worker's address that was created so long before noon.
func matching(age time.Duration, change func(*corev1.Node)) *corev1.Node {
	n := node(address(corev1.NodeInternalIP, "172.23.1.67"))
	n.CreationTimestamp = metav1.NewTime(noon().Add(-age))
	n.Annotations = map[string]string{}
	if change != nil {
		change(n)
	}
	return n
}

func reported(t *testing.T, n *corev1.Node, terms spc.Terms, records ...spc.Record) spc.Report {
	t.Helper()
	terms.Now = noon()
	x := spc.NewIndex(&spc.Inventory{Organization: 111, AsOf: noon(), Records: records})
	report, err := spc.Reported(n, x.Find(n), terms)
	require.NoError(t, err)
	return report
}

// written applies a report as the API server would.
func written(n *corev1.Node, r spc.Report) *corev1.Node {
	n = n.DeepCopy()
	for to, changes := range map[*map[string]string]map[string]*string{&n.Labels: r.Labels, &n.Annotations: r.Annotations} {
		for key, value := range changes {
			if *to == nil {
				*to = map[string]string{}
			}
			if value == nil {
				delete(*to, key)
			} else {
				(*to)[key] = *value
			}
		}
	}
	return n
}

func stackpoint(n *corev1.Node) map[string]string {
	found := map[string]string{}
	for key, value := range n.Labels {
		if strings.HasPrefix(key, "stackpoint.io/") {
			found[key] = value
		}
	}
	return found
}

func TestReportedIsTheFullSet(t *testing.T) {
	n := matching(time.Hour, func(n *corev1.Node) { n.Labels[spc.RoleLabel] = "worker" })
	after := written(n, reported(t, n, spc.Terms{}, worker(func(r *spc.Record) { r.Created = "2016-09-27T22:09:57.091286Z" })))
	require.Equal(t, map[string]string{
		spc.InstanceIDLabel: "netatt9dgn-worker-2", spc.NodeIDLabel: "91192", spc.NodeGroupLabel: "autoscaling-netatt9dgn-pool-1",
		spc.NodePoolLabel: "Default-Worker-Pool", spc.ClusterIDLabel: "23391", spc.PrivateIPLabel: "172.23.1.67",
		spc.RoleLabel: "worker", spc.SizeLabel: "c4.xlarge",
	}, stackpoint(after))
	require.JSONEq(t, `{"org":111,"pk":91192,"cluster":23391,"pool_name":"Default Worker Pool","instance_id":"netatt9dgn-worker-2",
		"provider_node_id":"i-0769aa","role":"worker","group_name":"autoscaling-netatt9dgn-pool-1","private_ip":"172.23.1.67",
		"public_ip":"198.51.100.7","size":"c4.xlarge","state":"running","evidence":["private_ip"],"labels":["stackpoint.io/cluster_id",
		"stackpoint.io/instance_id","stackpoint.io/node_group","stackpoint.io/node_id","stackpoint.io/node_pool",
		"stackpoint.io/private_ip","stackpoint.io/size"]}`, after.Annotations[spc.NodeAnnotation])
	require.NotContains(t, after.Annotations, spc.ProblemAnnotation)

	again := reported(t, after, spc.Terms{}, worker(func(r *spc.Record) { r.Created = "2016-09-27T22:09:57.091286Z" }))
	require.Empty(t, again.Labels)
	require.Empty(t, again.Annotations)
}

func TestALabelWithAnotherValueStays(t *testing.T) {
	n := matching(time.Hour, func(n *corev1.Node) { n.Labels[spc.SizeLabel] = "set-by-hand" })
	report := reported(t, n, spc.Terms{}, worker(nil))
	require.Equal(t, spc.ReasonLabel, report.Reason)
	after := written(n, report)
	require.Equal(t, "set-by-hand", after.Labels[spc.SizeLabel])
	require.Equal(t, "netatt9dgn-worker-2", after.Labels[spc.InstanceIDLabel])
	require.Equal(t, "labels left as they are: stackpoint.io/size=set-by-hand (SPC says c4.xlarge)", after.Annotations[spc.ProblemAnnotation])

	// The record's own size changes: ours is left too, for a value is a value.
	delete(n.Labels, spc.SizeLabel)
	after = written(n, reported(t, n, spc.Terms{}, worker(nil)))
	after = written(after, reported(t, after, spc.Terms{}, worker(func(r *spc.Record) { r.Size = "c4.2xlarge" })))
	require.Equal(t, "c4.xlarge", after.Labels[spc.SizeLabel])
	require.Contains(t, after.Annotations[spc.ProblemAnnotation], "(SPC says c4.2xlarge)")
}

func TestProblems(t *testing.T) {
	state := func(state string, failed bool) func(*spc.Record) {
		return func(r *spc.Record) { r.State, r.IsFailed = state, failed }
	}
	for name, tc := range map[string]struct {
		age     time.Duration
		change  func(*corev1.Node)
		record  func(*spc.Record)
		reason  string
		problem string
		labels  bool
	}{
		"none":                        {age: time.Hour, labels: true},
		"failed by state":             {record: state("failed", false), reason: spc.ReasonFailed, problem: "netatt9dgn-worker-2 (node_id 91192) has failed (state failed)", labels: true},
		"failed by its flag":          {record: state("building", true), reason: spc.ReasonFailed, problem: "has failed (state building, failed)", labels: true},
		"being built":                 {age: 15*time.Minute - time.Second, record: state("building", false), labels: true},
		"never built":                 {age: 15 * time.Minute, record: state("building", false), reason: spc.ReasonUnfinished, problem: "is in state building", labels: true},
		"left in draft":               {age: time.Hour, record: state("draft", false), reason: spc.ReasonUnfinished, problem: "is in state draft", labels: true},
		"a state nobody documents":    {record: state("hibernating", false), reason: spc.ReasonState, problem: "is in state hibernating, which is none", labels: true},
		"no state":                    {record: state("", false), reason: spc.ReasonState, problem: "is in state unnamed", labels: true},
		"no machine yet":              {age: 5*time.Minute - time.Second, record: func(r *spc.Record) { r.PrivateIP = "" }},
		"no machine":                  {age: 5 * time.Minute, record: func(r *spc.Record) { r.PrivateIP = "" }, reason: spc.ReasonMissing, problem: "no live SPC record"},
		"its machine is going":        {change: func(n *corev1.Node) { n.Labels[spc.NodeIDLabel] = "91192" }, record: state("deleting", false), reason: spc.ReasonGone, problem: "is gone from SPC"},
		"another machine's labels":    {change: func(n *corev1.Node) { n.Labels[spc.NodeIDLabel] = "1" }, reason: spc.ReasonConflict, problem: "its labels name SPC node_id 1"},
		"an ID that no label holds":   {record: func(r *spc.Record) { r.InstanceID = "netatt9dgn worker 2" }, reason: spc.ReasonUnfit, problem: `no label can hold the instance ID "netatt9dgn worker 2" as it is`, labels: true},
		"a group that no label holds": {record: func(r *spc.Record) { r.GroupName = strings.Repeat("g", 64) }, reason: spc.ReasonUnfit, problem: "no label can hold the group", labels: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := matching(tc.age, tc.change)
			report := reported(t, n, spc.Terms{}, worker(tc.record))
			require.Equal(t, tc.reason, report.Reason, report.Problem)
			require.Contains(t, report.Problem, tc.problem)
			require.Equal(t, tc.labels, len(report.Labels) > 0)
			after := written(n, report)
			require.Equal(t, report.Problem, after.Annotations[spc.ProblemAnnotation])
			again := reported(t, after, spc.Terms{}, worker(tc.record))
			require.Empty(t, again.Labels)
			require.Empty(t, again.Annotations, "said once")
			if tc.reason == spc.ReasonFailed || tc.reason == spc.ReasonMissing {
				require.NotContains(t, written(after, reported(t, after, spc.Terms{}, worker(nil))).Annotations, spc.ProblemAnnotation, "it is over")
			}
		})
	}
}

// What could not be read, or not yet, changes nothing: neither labels nor what was said.
func TestAnUnknownMatchChangesNothing(t *testing.T) {
	n := matching(time.Hour, func(n *corev1.Node) {
		n.Annotations[spc.ProblemAnnotation] = "said before"
		n.Labels[spc.NodeGroupLabel] = "autoscaling-netatt9dgn-pool-1"
	})
	report, err := spc.Reported(n, spc.NewIndex(nil).Find(n), spc.Terms{Now: noon(), Withhold: "the node holds etcd", Protected: true})
	require.NoError(t, err)
	require.Empty(t, report.Labels)
	require.Empty(t, report.Annotations)
}

func TestTheGroupOfAProtectedNode(t *testing.T) {
	protected := spc.Terms{Withhold: "the node holds etcd", Protected: true}
	unknown := spc.Terms{Withhold: "whether it holds etcd is not known yet"}
	group := "autoscaling-netatt9dgn-pool-1"
	withheld := func(n *corev1.Node) string {
		var said struct{ Withheld string }
		require.NoError(t, json.Unmarshal([]byte(n.Annotations[spc.NodeAnnotation]), &said))
		return said.Withheld
	}

	fresh := matching(time.Hour, nil)
	for _, terms := range []spc.Terms{protected, unknown} {
		after := written(fresh, reported(t, fresh, terms, worker(nil)))
		require.NotContains(t, after.Labels, spc.NodeGroupLabel)
		require.Equal(t, "netatt9dgn-worker-2", after.Labels[spc.InstanceIDLabel], "the rest is written")
		require.Equal(t, "node_group: "+terms.Withhold, withheld(after))
		require.Empty(t, reported(t, after, terms, worker(nil)).Annotations)
		free := written(after, reported(t, after, spc.Terms{}, worker(nil)))
		require.Equal(t, group, free.Labels[spc.NodeGroupLabel], "it is protected no more")
		require.Empty(t, withheld(free))
	}

	// Ours is taken off when the node turns out to be protected, not while that is unknown.
	ours := written(fresh, reported(t, fresh, spc.Terms{}, worker(nil)))
	require.Equal(t, group, ours.Labels[spc.NodeGroupLabel])
	require.Empty(t, reported(t, ours, unknown, worker(nil)).Labels)
	after := written(ours, reported(t, ours, protected, worker(nil)))
	require.NotContains(t, after.Labels, spc.NodeGroupLabel)
	require.Empty(t, reported(t, after, protected, worker(nil)).Labels)

	// Somebody else's stays, and the danger is said.
	theirs := matching(time.Hour, func(n *corev1.Node) { n.Labels[spc.NodeGroupLabel] = group })
	report := reported(t, theirs, protected, worker(nil))
	require.NotContains(t, report.Labels, spc.NodeGroupLabel)
	require.Equal(t, spc.ReasonGrouped, report.Reason)
	require.Contains(t, report.Problem, "kubectl label node ip-172-23-1-67 stackpoint.io/node_group-")

	// Ours that somebody has changed is theirs.
	ours.Labels[spc.NodeGroupLabel] = "another"
	require.NotContains(t, reported(t, ours, protected, worker(nil)).Labels, spc.NodeGroupLabel)

	// So is what Holdfast set for another machine that the Node was before.
	another := written(fresh, reported(t, fresh, spc.Terms{}, worker(nil)))
	another.Labels = map[string]string{spc.NodeGroupLabel: group}
	require.NotContains(t, reported(t, another, protected, worker(func(r *spc.Record) { r.PK = 5 })).Labels, spc.NodeGroupLabel)

	// Without a group in the API there is nothing to withhold.
	none := worker(func(r *spc.Record) { r.GroupName = "" })
	after = written(fresh, reported(t, fresh, protected, none))
	require.NotContains(t, after.Labels, spc.NodeGroupLabel)
	require.Empty(t, withheld(after))
	require.NotContains(t, written(fresh, reported(t, fresh, spc.Terms{}, none)).Labels, spc.NodeGroupLabel, "a group is never invented")
}

func TestLabelsAreValid(t *testing.T) {
	r := worker(func(r *spc.Record) {
		r.PoolName, r.Role, r.Size, r.PrivateIP = "  Größe \"M\" ("+strings.Repeat("x", 70)+")", "-", ".c4/xlarge.", "fd00::1"
	})
	n := node(address(corev1.NodeInternalIP, "fd00::1"))
	n.CreationTimestamp = metav1.NewTime(noon())
	got := stackpoint(written(n, reported(t, n, spc.Terms{}, r)))
	require.Equal(t, "Gr--e--M---"+strings.Repeat("x", 52), got[spc.NodePoolLabel])
	require.NotContains(t, got, spc.RoleLabel)
	require.Equal(t, "c4-xlarge", got[spc.SizeLabel])
	require.Equal(t, "fd00--1", got[spc.PrivateIPLabel])
}
