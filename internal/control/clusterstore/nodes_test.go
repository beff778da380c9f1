package clusterstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/control/follow"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func TestNodeState(t *testing.T) {
	now := metav1.NewTime(time.Now())
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		change(n)
		return n
	}
	taint := func(key string) *corev1.Node {
		return node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "other"}, {Key: key}} })
	}
	marked := func(class departure.Class, key, says string) observation.NodeState {
		return observation.NodeState{
			Known: true, UID: "u", Departure: departure.Mark{Class: class, Kind: departure.Taint, Key: key, Says: says},
		}
	}
	for name, test := range map[string]struct {
		read LiveNode
		want observation.NodeState
	}{
		"unreadable": {LiveNode{Err: errors.New("timeout")}, observation.NodeState{}},
		"absent":     {LiveNode{}, observation.NodeState{Known: true}},
		"present":    {LiveNode{Node: node(func(*corev1.Node) {})}, observation.NodeState{Known: true, UID: "u"}},
		"cordoned": {
			LiveNode{Node: node(func(n *corev1.Node) { n.Spec.Unschedulable = true })},
			observation.NodeState{Known: true, UID: "u", Cordoned: true},
		},
		"being deleted": {
			LiveNode{Node: node(func(n *corev1.Node) { n.DeletionTimestamp = &now })},
			observation.NodeState{Known: true, UID: "u", Deleting: true},
		},
		"cluster-autoscaler": {
			LiveNode{Node: taint("ToBeDeletedByClusterAutoscaler")},
			marked(departure.ForGood, "ToBeDeletedByClusterAutoscaler", "is about to be deleted"),
		},
		"medik8s": {
			LiveNode{Node: taint("medik8s.io/drain")},
			marked(departure.ForAWhile, "medik8s.io/drain", "is under maintenance by node-maintenance-operator"),
		},
		"--doomed-taint": {
			LiveNode{Node: taint("example.com/gone")},
			marked(departure.ForGood, "example.com/gone", "is marked by --doomed-taint as going for good"),
		},
		"deletion candidate": {
			LiveNode{Node: taint("DeletionCandidateOfClusterAutoscaler")},
			observation.NodeState{Known: true, UID: "u"},
		},
	} {
		table := departure.Table{}.Add(departure.ForGood, "example.com/gone")
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, test.read.State(table)) })
	}
}

func TestCurrentOr(t *testing.T) {
	live := func(context.Context) (string, error) { return "live", nil }
	fails := func(ctx context.Context) (string, error) {
		_, isSet := ctx.Deadline()
		require.True(t, isSet, "a fail-open entry has two seconds")
		return "", errors.New("no answer")
	}
	for _, test := range []struct {
		isCurrent bool
		err       error
		live      func(context.Context) (string, error)
		want      string
		wantErr   error
	}{
		{isCurrent: true, live: live, want: "cached"},
		{live: live, want: "live"},
		{live: fails, want: "cached"},
		{err: follow.ErrNotFilled, live: live, want: "live"},
		{err: follow.ErrNotFilled, live: fails, want: "cached", wantErr: follow.ErrNotFilled},
	} {
		found, err := currentOr(t.Context(), test.isCurrent, "cached", test.err, test.live)
		require.Equal(t, test.want, found)
		require.Equal(t, test.wantErr, err)
	}
}
