package machine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// F73: a registered NodeClaim ended after its Node; its grant ended first, and the machine joined
// again. The last request on every way by which the machine of an object ends is reviewed, and no
// request follows it.
func TestEveryEnd(t *testing.T) {
	var ways []string
	for _, hasNode := range []bool{true, false} {
		for _, o := range []machine.Object{
			{Kind: machine.KindMachine},
			{Kind: machine.KindMachine, IsHooked: true},
			{Kind: machine.KindNodeClaim},
			{Kind: machine.KindNodeClaim, IsRegistered: true},
		} {
			ways = append(ways, walkToEnd(t, o, hasNode))
		}
	}
	require.Equal(t, []string{
		"Machine: delete Machine, end", "Machine: delete Machine, remove hook, end",
		"NodeClaim: delete NodeClaim, end", "NodeClaim: delete NodeClaim, delete Node, end",
		"Machine: delete Machine, end", "Machine: delete Machine, remove hook, end",
		"NodeClaim: delete NodeClaim, end", "NodeClaim: delete NodeClaim, end", // its Node is gone
	}, ways)
}

// walkToEnd does what the controllers do until the machine ends, and returns the requests.
func walkToEnd(t *testing.T, o machine.Object, hasNode bool) string {
	t.Helper()
	way := o.Kind + ":"
	for step := 0; ; step++ {
		require.Less(t, step, 5, "the machine never ends: %s", way)
		isEnding := o.IsEnding(hasNode)
		switch {
		case !o.Deleting:
			way += fmt.Sprintf(" delete %s,", o.Kind)
			require.Equal(t, !o.IsHooked, o.EndsWithNode(), "only the hook is reviewed after its Node is deleted")
			o.Deleting = true
		case o.Kind == machine.KindNodeClaim && o.IsRegistered && hasNode:
			way += " delete Node,"
			hasNode = false
		case o.IsHooked:
			way += " remove hook,"
			require.Equal(t, machine.HookKeep, machine.PlanHook(o, true), "not before the controller waits for it")
			o.AwaitsHook = true
			require.Equal(t, machine.HookReview, machine.PlanHook(o, false), "whether an etcd node is known or not")
			o.IsHooked, o.AwaitsHook = false, false
		default:
			require.True(t, isEnding)
			require.NotEqual(t, machine.HookAdd, machine.PlanHook(o, true), "its end was allowed")
			return way + " end"
		}
		require.False(t, isEnding, "a reviewed request follows: %s", way)
	}
}
