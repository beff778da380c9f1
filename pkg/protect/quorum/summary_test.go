package quorum_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
)

func TestSummarize(t *testing.T) {
	type want struct {
		known               bool
		mayLose             int
		withoutNode, unseen []v1alpha1.MemberID
		noSpace, corrupt    []v1alpha1.MemberID
		alarmsUnknown       bool
	}
	ids, voters := quorumtest.IDs, quorumtest.Voters
	full := want{known: true, mayLose: 1, noSpace: ids("b")}
	for name, test := range map[string]struct {
		cluster *quorumtest.Cluster
		want    want
	}{
		"healthy":          {voters(3), want{known: true, mayLose: 1}},
		"silent agent":     {voters(3).Silent(1), want{known: true, mayLose: 1, unseen: ids("b")}},
		"dead node":        {voters(3).Dead(1), want{known: true, unseen: ids("b")}},
		"unknown host":     {voters(3).Unprovable(2), want{known: true, withoutNode: ids("c")}},
		"host with a Node": {voters(3).Unprovable(2).MayRunAt(2, 2), want{known: true, unseen: ids("c")}},
		"Node is gone":     {voters(3).State(0, quorumtest.Gone).Granted(0), want{known: true, withoutNode: ids("a")}},
		"no agent answers": {voters(3).Silent(0, 1, 2), want{unseen: ids("a", "b", "c"), alarmsUnknown: true}},
		"no list, and a Node is gone": {
			voters(3).Silent(0, 1, 2).State(0, quorumtest.Gone),
			want{withoutNode: ids("a"), unseen: ids("b", "c"), alarmsUnknown: true},
		},
		"NOSPACE":                   {voters(3).Everywhere(1, alarm("NOSPACE")), full},
		"NOSPACE in the first list": {voters(3).InList(0, 1, alarm("NOSPACE")), full},
		"bound, in no list":         {voters(4).Removed(3).Silent(3), want{known: true, mayLose: 1}},
		"host with a Node that is gone": {
			voters(3).Unprovable(2).MayRunAt(2, 2).Gone(2), want{known: true, withoutNode: ids("c")},
		},
		"unknown host beside a known one": {
			voters(3).Unprovable(2).MayRunAt(0, 0), want{known: true, withoutNode: ids("c")},
		},
		"CORRUPT":       {voters(3).Everywhere(1, alarm("CORRUPT")), want{known: true, corrupt: ids("b")}},
		"alarms unread": {voters(3).AlarmsUnknown(), want{known: true, alarmsUnknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := quorum.Summarize(test.cluster.View)
			got := want{known: o.Known, mayLose: o.MayLose, withoutNode: o.WithoutNode, unseen: o.Unseen}
			got.noSpace, got.corrupt, got.alarmsUnknown = o.Alarms["NOSPACE"], o.Alarms["CORRUPT"], o.Alarms == nil
			require.Equal(t, test.want, got, words.Summary(o))
		})
	}
	require.Equal(t, "3 voters, 2 healthy, quorum 2; "+
		"etcd2 (b) not confirmed healthy: connection refused (reported by node w2)",
		words.Summary(quorum.Summarize(voters(3).Unhealthy(1).View)))
}
