package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// newly runs an agent that starts on a node, and whose looks for etcd each take so long.
func newly(t *testing.T, node *corev1.Node, facts readiness.Facts, look time.Duration, act func(*testing.T, *remote)) {
	synctest.Test(t, func(t *testing.T) {
		node.Name, node.UID, node.ResourceVersion = testNode, "uid-1", "5"
		api := &remote{node: node}
		a, err := New(Config{
			Node: node.Name, Nodes: api, Events: api, Clusters: &Clusters{},
			Network: func(context.Context) readiness.Facts { return facts },
			Etcd: func(ctx context.Context) ([]protect.Sighting, []string) {
				_ = pause(ctx, look) // a look that is cut short has seen as much
				return nil, nil
			},
			Watch: func(ctx context.Context, _ func()) error { <-ctx.Done(); return context.Cause(ctx) },
			Tick:  slowTick, Log: discard(),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		act(t, api)
		cancel()
		api.locked(func() { api.away = refuses })
		require.ErrorIs(t, <-ended, context.Canceled)
		elapse(t, time.Minute) // what hangs ends
	})
}

// A node that begins its life is written once for what is missing and for what is found, and not once for each.
func TestAHoldIsExplainedWithTheFirstLook(t *testing.T) {
	// said are the conditions there are.
	said := func(t *testing.T, api *remote) (held, member corev1.ConditionStatus, version string) {
		t.Helper()
		api.locked(func() {
			held, member = status(api.node, readiness.NetworkHeld), status(api.node, protect.EtcdMemberCondition)
			version = api.node.ResourceVersion
		})
		return held, member, version
	}
	settled := bornHeld(testNode)
	settled.Annotations[readiness.HoldAnnotation] = readiness.Record{State: readiness.Released, BootID: testBoot, Reason: readiness.NetworkReady}.Format()
	settled.Spec.Unschedulable, settled.Status.Conditions = false, nil
	for name, c := range map[string]struct {
		node *corev1.Node
		held corev1.ConditionStatus
	}{
		"it takes a moment":          {bornHeld(testNode), corev1.ConditionTrue},
		"of a node that is not held": {settled, corev1.ConditionFalse},
	} {
		t.Run(name, func(t *testing.T) {
			newly(t, c.node, closed(), 80*time.Millisecond, func(t *testing.T, api *remote) {
				elapse(t, time.Second)
				held, member, version := said(t, api)
				require.Equal(t, c.held, held)
				require.Equal(t, corev1.ConditionFalse, member)
				require.Equal(t, "6", version, "one write")
			})
		})
	}
	t.Run("it hangs", func(t *testing.T) {
		newly(t, bornHeld(testNode), closed(), time.Hour, func(t *testing.T, api *remote) {
			elapse(t, time.Second)
			_, _, version := said(t, api)
			require.Equal(t, "5", version)
			elapse(t, slowTick)
			held, member, _ := said(t, api)
			require.Equal(t, corev1.ConditionTrue, held, "who looks at a held node is not kept waiting for it")
			require.Empty(t, member, "and nothing is said of what was not seen")
		})
	})
	t.Run("no hold waits for it", func(t *testing.T) {
		rebooted := bornHeld(testNode)
		rebooted.Annotations[readiness.HoldAnnotation] = readiness.Record{State: readiness.Released, BootID: "the last boot", Reason: readiness.NetworkReady}.Format()
		rebooted.Spec.Unschedulable = false
		newly(t, rebooted, closed(), time.Hour, func(t *testing.T, api *remote) {
			elapse(t, 100*time.Millisecond)
			require.True(t, api.node.Spec.Unschedulable)
			require.Equal(t, corev1.ConditionTrue, status(api.node, readiness.NetworkHeld), "who cordons says why")
		})
	})
	t.Run("what follows from a hold does not wait for it", func(t *testing.T) {
		cleared := bornHeld(testNode)
		cleared.Status.Conditions[0].Status = corev1.ConditionFalse // by flannel, while the agent was not there
		newly(t, cleared, closed(), time.Hour, func(t *testing.T, api *remote) {
			elapse(t, 100*time.Millisecond)
			require.Equal(t, corev1.ConditionTrue, status(api.node, corev1.NodeNetworkUnavailable))
			require.Empty(t, status(api.node, readiness.NetworkHeld))
		})
	})
	t.Run("no release waits for it", func(t *testing.T) {
		newly(t, bornHeld(testNode), open(), time.Hour, func(t *testing.T, api *remote) {
			elapse(t, 100*time.Millisecond)
			require.True(t, free(api.node))
		})
	})
}
