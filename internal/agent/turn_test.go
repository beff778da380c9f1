package agent

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// bound is an EtcdCluster with members on these nodes, in which somebody asks.
func bound(nonce string, nodes ...string) *v1alpha1.EtcdCluster {
	c := &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Name: string(testCluster), UID: "c1"}, Spec: v1alpha1.EtcdClusterSpec{Nonce: nonce},
	}
	for _, node := range nodes {
		c.Spec.Members = append(c.Spec.Members, v1alpha1.Binding{Node: node, NodeUID: types.UID("of " + node)})
	}
	return c
}

func TestNodesAnswerInTurn(t *testing.T) {
	for name, test := range map[string]struct {
		nodes []string
		look  time.Duration
		want  time.Duration
	}{
		"the first answers at once":               {[]string{testNode, testNode + "-b"}, time.Millisecond, time.Millisecond},
		"the third leaves time to two":            {[]string{"0", "1", testNode}, time.Millisecond, 2 * turnTime},
		"two members on one node are one answer":  {[]string{"0", "0", testNode}, time.Millisecond, turnTime},
		"the time of the look counts":             {[]string{"0", testNode}, 10 * turnTime, 10 * turnTime},
		"one that is not bound yet has its place": {[]string{"0"}, time.Millisecond, turnTime},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(ctx context.Context, _ *stage) v1alpha1.Observation {
				_ = pause(ctx, test.look)
				return v1alpha1.Observation{Linearizable: true}
			}, func(s *stage) {
				require.NoError(t, (&reflected[*v1alpha1.EtcdCluster]{s.clusters}).Replace([]any{bound("a", test.nodes...)}, ""))
				s.wait(time.Minute / 2)
				require.Len(t, s.written(), 1)
				require.Equal(t, test.want, s.written()[0].at)
			})
		})
	}
}
