package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

func TestPlanHook(t *testing.T) {
	for name, c := range map[string]struct {
		object  machine.Object
		hasEtcd bool
		want    machine.HookStep
	}{
		"etcd node":              {machine.Object{}, true, machine.HookAdd},
		"etcd node, hooked":      {machine.Object{IsHooked: true}, true, machine.HookKeep},
		"other node":             {machine.Object{}, false, machine.HookKeep},
		"other node, hooked":     {machine.Object{IsHooked: true}, false, machine.HookRemove},
		"deleting, never hooked": {machine.Object{Deleting: true, AwaitsHook: true}, true, machine.HookKeep},
		"deleting, draining":     {machine.Object{Deleting: true, IsHooked: true}, true, machine.HookKeep},
		"deleting, drained": {
			machine.Object{Deleting: true, IsHooked: true, AwaitsHook: true}, true, machine.HookReview,
		},
		"deleting, drained, other node": {
			machine.Object{Deleting: true, IsHooked: true, AwaitsHook: true}, false, machine.HookReview,
		},
		"deleting, draining, other node": {machine.Object{Deleting: true, IsHooked: true}, false, machine.HookKeep},
		"NodeClaim":                      {machine.Object{Kind: machine.KindNodeClaim}, true, machine.HookKeep},
	} {
		t.Run(name, func(t *testing.T) {
			if c.object.Kind == "" {
				c.object.Kind = machine.KindMachine
			}
			require.Equal(t, c.want, machine.PlanHook(c.object, c.hasEtcd))
		})
	}
}

func TestIsEnding(t *testing.T) {
	for name, c := range map[string]struct {
		object machine.Object
		want   bool
	}{
		"Machine":                   {machine.Object{}, false},
		"Machine, deleting":         {machine.Object{Deleting: true}, true},
		"Machine, deleting, hooked": {machine.Object{Deleting: true, IsHooked: true}, false},
		"NodeClaim, not registered": {machine.Object{Kind: machine.KindNodeClaim}, false},
		"NodeClaim, deleting": {
			machine.Object{Kind: machine.KindNodeClaim, Deleting: true, IsRegistered: true}, false,
		},
		"NodeClaim, deleting, not registered": {machine.Object{Kind: machine.KindNodeClaim, Deleting: true}, true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, c.object.IsEnding()) })
	}
}
