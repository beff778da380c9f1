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

func TestNewReport(t *testing.T) {
	n := nodeOfAge(time.Hour, label(spc.RoleLabel, "worker"))
	record := worker(func(r *spc.Record) { r.Created = "2016-09-27T22:09:57.091286Z" })
	after := applied(n, newReport(t, n, spc.Terms{}, record))
	require.Equal(t, map[string]string{
		spc.InstanceIDLabel: "netatt9dgn-worker-2", spc.NodeIDLabel: "91192",
		spc.NodeGroupLabel: "autoscaling-netatt9dgn-pool-1", spc.NodePoolLabel: "Default-Worker-Pool",
		spc.ClusterIDLabel: "23391", spc.PrivateIPLabel: "172.23.1.67", spc.RoleLabel: "worker", spc.SizeLabel: "c4.xlarge",
	}, stackpointLabels(after))
	require.JSONEq(t, `{"org":111,"pk":91192,"cluster":23391,"pool_name":"Default Worker Pool",
		"instance_id":"netatt9dgn-worker-2","provider_node_id":"i-0769aa","role":"worker",
		"group_name":"autoscaling-netatt9dgn-pool-1","private_ip":"172.23.1.67","public_ip":"198.51.100.7",
		"size":"c4.xlarge","state":"running","evidence":["private_ip"],"labels":["stackpoint.io/cluster_id",
		"stackpoint.io/instance_id","stackpoint.io/node_group","stackpoint.io/node_id","stackpoint.io/node_pool",
		"stackpoint.io/private_ip","stackpoint.io/size"]}`, after.Annotations[spc.NodeAnnotation])
	require.NotContains(t, after.Annotations, spc.ProblemAnnotation)

	again := newReport(t, after, spc.Terms{}, record)
	require.Empty(t, again.Labels)
	require.Empty(t, again.Annotations)
}

func TestDifferentLabelStays(t *testing.T) {
	n := nodeOfAge(time.Hour, label(spc.SizeLabel, "set-by-hand"))
	report := newReport(t, n, spc.Terms{}, worker(nil))
	require.Equal(t, spc.ReasonLabel, report.Reason)
	after := applied(n, report)
	require.Equal(t, "set-by-hand", after.Labels[spc.SizeLabel])
	require.Equal(t, "netatt9dgn-worker-2", after.Labels[spc.InstanceIDLabel])
	require.Equal(t, "labels not changed: stackpoint.io/size=set-by-hand (SPC has c4.xlarge); to get the values of SPC, "+
		"remove them: kubectl label node "+n.Name+" stackpoint.io/size-", after.Annotations[spc.ProblemAnnotation])

	// The size in the record changes. The label that Holdfast set stays as well.
	delete(n.Labels, spc.SizeLabel)
	after = applied(n, newReport(t, n, spc.Terms{}, worker(nil)))
	after = applied(after, newReport(t, after, spc.Terms{}, worker(func(r *spc.Record) { r.Size = "c4.2xlarge" })))
	require.Equal(t, "c4.xlarge", after.Labels[spc.SizeLabel])
	require.Contains(t, after.Annotations[spc.ProblemAnnotation], "(SPC has c4.2xlarge)")
}

// TestOwnedLabelOfEarlierRecord: Holdfast sets the label of a group, SPC changes the group, and
// then the node turns out to hold etcd.
func TestOwnedLabelOfEarlierRecord(t *testing.T) {
	for name, group := range map[string]string{"another group": "other", "no group": ""} {
		t.Run(name, func(t *testing.T) {
			n := nodeOfAge(time.Hour, func(*corev1.Node) {})
			after := applied(n, newReport(t, n, spc.Terms{}, worker(nil)))
			require.NotEmpty(t, after.Labels[spc.NodeGroupLabel])
			changed := worker(func(r *spc.Record) { r.GroupName = group })
			for range 3 {
				after = applied(after, newReport(t, after, spc.Terms{}, changed))
			}
			require.NotEmpty(t, after.Labels[spc.NodeGroupLabel])
			terms := spc.Terms{Withhold: "it holds etcd", Protected: true}
			report := newReport(t, after, terms, changed)
			after = applied(after, report)
			require.NotContains(t, after.Labels, spc.NodeGroupLabel)
			require.NotContains(t, report.Problem, "did not set")
			require.Equal(t, after, applied(after, newReport(t, after, terms, changed)))
		})
	}
}

func TestProblems(t *testing.T) {
	state := func(state string, failed bool) func(*spc.Record) {
		return func(r *spc.Record) { r.State, r.IsFailed = state, failed }
	}
	noAddress := func(r *spc.Record) { r.PrivateIP = "" }
	unfitID := func(r *spc.Record) { r.InstanceID = "netatt9dgn worker 2" }
	unfitGroup := func(r *spc.Record) { r.GroupName = strings.Repeat("g", 64) }
	const labelled, unlabelled = true, false
	for name, tc := range map[string]struct {
		age     time.Duration
		change  nodeChange
		record  func(*spc.Record)
		labels  bool
		reason  string
		problem string
	}{
		"none": {time.Hour, nil, nil, labelled, "", ""},
		"failed state": {
			0, nil, state("failed", false), labelled, spc.ReasonFailed,
			"netatt9dgn-worker-2 (node_id 91192) has failed (state failed)",
		},
		"failure flag": {
			0, nil, state("building", true), labelled, spc.ReasonFailed, "has failed (state building, failed)",
		},
		"building": {15*time.Minute - time.Second, nil, state("building", false), labelled, "", ""},
		"building too long": {
			15 * time.Minute, nil, state("building", false), labelled, spc.ReasonUnfinished, "is in state building",
		},
		"draft too long": {time.Hour, nil, state("draft", false), labelled, spc.ReasonUnfinished, "is in state draft"},
		"undocumented state": {
			0, nil, state("hibernating", false), labelled, spc.ReasonState,
			"is in state hibernating, which SPC does not document",
		},
		"no state":       {0, nil, state("", false), labelled, spc.ReasonState, "is in state unnamed"},
		"no machine yet": {5*time.Minute - time.Second, nil, noAddress, unlabelled, "", ""},
		"no machine":     {5 * time.Minute, nil, noAddress, unlabelled, spc.ReasonMissing, "no live SPC record"},
		"machine deleting": {
			0, label(spc.NodeIDLabel, "91192"), state("deleting", false), unlabelled, spc.ReasonGone, "no longer exists in SPC",
		},
		"labels of another machine": {
			0, label(spc.NodeIDLabel, "1"), nil, unlabelled, spc.ReasonConflict, "its labels name SPC node_id 1",
		},
		"invalid instance ID": {
			0, nil, unfitID, labelled, spc.ReasonUnfit, `the instance ID "netatt9dgn worker 2" is not a valid label value`,
		},
		"invalid group": {0, nil, unfitGroup, labelled, spc.ReasonUnfit, "the group \"ggg"},
	} {
		t.Run(name, func(t *testing.T) {
			n := nodeOfAge(tc.age, tc.change)
			report := newReport(t, n, spc.Terms{}, worker(tc.record))
			require.Equal(t, tc.reason, report.Reason, report.Problem)
			require.Contains(t, report.Problem, tc.problem)
			require.Equal(t, tc.labels, len(report.Labels) > 0)
			after := applied(n, report)
			require.Equal(t, report.Problem, after.Annotations[spc.ProblemAnnotation])
			again := newReport(t, after, spc.Terms{}, worker(tc.record))
			require.Empty(t, again.Labels)
			require.Empty(t, again.Annotations, "a problem is written once")
			if tc.reason == spc.ReasonFailed || tc.reason == spc.ReasonMissing {
				ended := applied(after, newReport(t, after, spc.Terms{}, worker(nil)))
				require.NotContains(t, ended.Annotations, spc.ProblemAnnotation, "the problem has ended")
			}
		})
	}
}

func TestGroupOfProtectedNode(t *testing.T) {
	protected := spc.Terms{Withhold: "the node holds etcd", Protected: true}
	unknown := spc.Terms{Withhold: "whether it holds etcd is not known yet"}
	group := "autoscaling-netatt9dgn-pool-1"
	withheld := func(n *corev1.Node) string {
		var annotation struct{ Withheld string }
		require.NoError(t, json.Unmarshal([]byte(n.Annotations[spc.NodeAnnotation]), &annotation))
		return annotation.Withheld
	}

	fresh := nodeOfAge(time.Hour, nil)
	with := func(n *corev1.Node, terms spc.Terms, r spc.Record) *corev1.Node {
		return applied(n, newReport(t, n, terms, r))
	}
	for _, terms := range []spc.Terms{protected, unknown} {
		after := with(fresh, terms, worker(nil))
		require.NotContains(t, after.Labels, spc.NodeGroupLabel)
		require.Equal(t, "netatt9dgn-worker-2", after.Labels[spc.InstanceIDLabel], "the other labels are written")
		require.Equal(t, "node_group: "+terms.Withhold, withheld(after))
		require.Empty(t, newReport(t, after, terms, worker(nil)).Annotations)
		free := with(after, spc.Terms{}, worker(nil))
		require.Equal(t, group, free.Labels[spc.NodeGroupLabel], "the node is no longer protected")
		require.Empty(t, withheld(free))
	}

	own := with(fresh, spc.Terms{}, worker(nil))
	require.Equal(t, group, own.Labels[spc.NodeGroupLabel])
	require.Empty(t, newReport(t, own, unknown, worker(nil)).Labels, "it is not removed while that is unknown")
	after := with(own, protected, worker(nil))
	require.NotContains(t, after.Labels, spc.NodeGroupLabel, "a label that Holdfast set is removed")
	require.Empty(t, newReport(t, after, protected, worker(nil)).Labels)

	foreign := nodeOfAge(time.Hour, label(spc.NodeGroupLabel, group))
	report := newReport(t, foreign, protected, worker(nil))
	require.NotContains(t, report.Labels, spc.NodeGroupLabel, "a label that Holdfast did not set stays")
	require.Equal(t, spc.ReasonGrouped, report.Reason)
	require.Contains(t, report.Problem, "kubectl label node ip-172-23-1-67 stackpoint.io/node_group-")

	another := own.DeepCopy()
	another.Labels = map[string]string{spc.NodeGroupLabel: group}
	now := worker(func(r *spc.Record) { r.PK = 5 })
	require.NotContains(t, newReport(t, another, protected, now).Labels, spc.NodeGroupLabel, "set for an earlier machine")
	own.Labels[spc.NodeGroupLabel] = "another"
	require.NotContains(t, newReport(t, own, protected, worker(nil)).Labels, spc.NodeGroupLabel, "changed since")

	none := worker(func(r *spc.Record) { r.GroupName = "" })
	for _, terms := range []spc.Terms{protected, {}} {
		after = with(fresh, terms, none)
		require.NotContains(t, after.Labels, spc.NodeGroupLabel, "the API has no group")
		require.Empty(t, withheld(after), "nothing is withheld")
	}
}

// TestGroupOfProtectedNodeWithoutMatch: the node got its group when it had no etcd and its machine
// was certain, which it is not any more.
func TestGroupOfProtectedNodeWithoutMatch(t *testing.T) {
	protected := spc.Terms{Now: noon(), Withhold: "the node holds etcd", Protected: true}
	fresh := nodeOfAge(time.Hour, nil)
	grouped := applied(fresh, newReport(t, fresh, spc.Terms{}, worker(nil)))
	changed, foreign := grouped.DeepCopy(), nodeOfAge(time.Hour, nil)
	changed.Labels[spc.NodeGroupLabel] = "another"
	foreign.Labels[spc.NodeGroupLabel] = grouped.Labels[spc.NodeGroupLabel]
	foreign.Annotations[spc.ProblemAnnotation] = "an earlier problem"
	for _, outcome := range []spc.Outcome{spc.Unknown, spc.Conflict, spc.Gone, spc.Missing} {
		match := spc.Match{Outcome: outcome, Message: "a problem"}
		report, err := spc.NewReport(grouped, match, protected)
		require.NoError(t, err)
		after := applied(grouped, report)
		require.NotContains(t, after.Labels, spc.NodeGroupLabel, outcome)
		require.Equal(t, grouped.Labels[spc.InstanceIDLabel], after.Labels[spc.InstanceIDLabel], outcome)
		again, err := spc.NewReport(after, match, protected)
		require.NoError(t, err)
		require.Empty(t, again.Labels, outcome)
		require.Empty(t, again.Annotations, outcome)
		free := applied(after, newReport(t, after, spc.Terms{}, worker(nil)))
		require.Equal(t, grouped.Labels, free.Labels, "the same machine, and no etcd any more")

		for _, n := range []*corev1.Node{changed, foreign} {
			report, err := spc.NewReport(n, match, protected)
			require.NoError(t, err)
			require.Empty(t, report.Labels, outcome)
			isReported := strings.Contains(report.Problem, "kubectl label node ip-172-23-1-67 stackpoint.io/node_group-")
			require.Equal(t, outcome != spc.Unknown, isReported, outcome)
			require.Equal(t, outcome != spc.Unknown, len(report.Annotations) > 0, outcome)
		}
		report, err = spc.NewReport(grouped, match, spc.Terms{Now: noon(), Withhold: "it is not known"})
		require.NoError(t, err)
		require.Empty(t, report.Labels, outcome)
	}
}

func TestLabelValues(t *testing.T) {
	r := worker(func(r *spc.Record) {
		r.PoolName = "  Größe \"M\" (" + strings.Repeat("x", 70) + ")"
		r.Role, r.Size, r.PrivateIP = "-", ".c4/xlarge.", "fd00::1"
	})
	n := node(address(corev1.NodeInternalIP, "fd00::1"))
	n.CreationTimestamp = metav1.NewTime(noon())
	got := stackpointLabels(applied(n, newReport(t, n, spc.Terms{}, r)))
	require.Equal(t, "Gr--e--M---"+strings.Repeat("x", 52), got[spc.NodePoolLabel])
	require.NotContains(t, got, spc.RoleLabel)
	require.Equal(t, "c4-xlarge", got[spc.SizeLabel])
	require.Equal(t, "fd00--1", got[spc.PrivateIPLabel])
}
