package machine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		kind, raw string
		want      machine.Object
	}{
		"Machine v1beta2": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u"},"spec":{"providerID":"cloud:///1"},
				"status":{"nodeRef":{"name":"w1"},"providerID":"ignored","nodeName":"ignored"}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", Node: "w1", ProviderID: "cloud:///1"},
		},
		"Machine v1beta1": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u"},"spec":{"providerID":null},
				"status":{"nodeRef":{"kind":"Node","name":"w1","uid":"n"}}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", Node: "w1"},
		},
		"hooked Machine, drained": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u","deletionTimestamp":"2026-11-22T00:00:00Z",
				"annotations":{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/holdfast":""}},
				"status":{"deletion":{"nodeDrainStartTime":"2026-11-22T00:00:00Z",
				"waitForPreTerminateHookStartTime":"2026-11-22T00:00:01Z"}}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", Deleting: true, IsHooked: true, AwaitsHook: true},
		},
		"hooked Machine, draining": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u","deletionTimestamp":"2026-11-22T00:00:00Z",
				"annotations":{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/holdfast":""}},
				"status":{"deletion":{"nodeDrainStartTime":"2026-11-22T00:00:00Z"},
				"conditions":[{"type":"Deleting","status":"True","reason":"DrainingNode"}]}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", Deleting: true, IsHooked: true},
		},
		"drained, by v1beta1 condition": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u"},
				"status":{"conditions":[{"type":"PreTerminateDeleteHookSucceeded","status":"False"}]}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", AwaitsHook: true},
		},
		"drained, by v1beta2 condition": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u"},
				"status":{"conditions":[{"type":"Deleting","status":"True","reason":"WaitingForPreTerminateHook"}]}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u", AwaitsHook: true},
		},
		"hook of another owner": {
			kind: machine.KindMachine,
			raw: `{"metadata":{"namespace":"a","name":"m","uid":"u",
				"annotations":{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup":""}}}`,
			want: machine.Object{Namespace: "a", Name: "m", UID: "u"},
		},
		"NodeClaim": {
			kind: machine.KindNodeClaim,
			raw: `{"metadata":{"name":"c","uid":"u"},"spec":{"providerID":"ignored"},
				"status":{"nodeName":"w1","providerID":"cloud:///1","conditions":[{"type":"Registered","status":"True"}]}}`,
			want: machine.Object{Name: "c", UID: "u", Node: "w1", ProviderID: "cloud:///1", IsRegistered: true},
		},
		"NodeClaim, not registered": {
			kind: machine.KindNodeClaim,
			raw: `{"metadata":{"name":"c","uid":"u"},
				"status":{"providerID":"cloud:///1","conditions":[{"type":"Registered","status":"Unknown"}]}}`,
			want: machine.Object{Name: "c", UID: "u", ProviderID: "cloud:///1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := machine.Parse(c.kind, []byte(c.raw))
			require.NoError(t, err)
			c.want.Kind = c.kind
			require.Equal(t, c.want, got)
		})
	}
	_, err := machine.Parse(machine.KindMachine, []byte(`{"spec":[]}`))
	require.ErrorContains(t, err, "parsing the Machine")
}

func TestMatch(t *testing.T) {
	for name, c := range map[string]struct {
		object         machine.Object
		node, provider string
		want           string
	}{
		"same provider ID": {
			machine.Object{ProviderID: "cloud:///1"}, "w1", "cloud:///1", "both have the provider ID cloud:///1",
		},
		"same provider ID, other name": {
			machine.Object{ProviderID: "cloud:///1", Node: "w2"}, "w1", "cloud:///1", "both have the provider ID cloud:///1",
		},
		"same name, Node without provider ID": {
			machine.Object{ProviderID: "cloud:///1", Node: "w1"}, "w1", "", "it names the Node in status.nodeRef",
		},
		"same name, object without provider ID": {
			machine.Object{Node: "w1"}, "w1", "cloud:///1", "it names the Node in status.nodeRef",
		},
		"same name, no provider IDs": {
			machine.Object{Kind: machine.KindNodeClaim, Node: "w1"}, "w1", "", "it names the Node in status.nodeName",
		},
		// F42, F71: a Machine of another cluster was judged as the Node with its Node's name, or kept its
		// grant.
		"F42 same name, other provider ID": {machine.Object{ProviderID: "cloud:///1", Node: "w1"}, "w1", "cloud:///2", ""},
		"other name":                       {machine.Object{Node: "w2"}, "w1", "", ""},
		"nothing known":                    {machine.Object{}, "w1", "", ""},
		"nothing known, Node without name": {machine.Object{}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, c.object.Match(c.node, c.provider))
		})
	}
}

// The deletion of a NodeClaim ends the machine of a Node that its controller does not know yet.
func Example() {
	claim, err := machine.Parse(machine.KindNodeClaim, []byte(`{"metadata":{"name":"pool-x7k2p"},
		"status":{"providerID":"cloud:///1","conditions":[{"type":"Registered","status":"False"}]}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(claim, "stands for node w1:", claim.Match("w1", "cloud:///1"))
	// Output: NodeClaim pool-x7k2p stands for node w1: both have the provider ID cloud:///1
}

func TestPlanHook(t *testing.T) {
	for name, c := range map[string]struct {
		object  machine.Object
		hasEtcd bool
		want    machine.HookStep
	}{
		"etcd node":         {machine.Object{}, true, machine.HookAdd},
		"etcd node, hooked": {machine.Object{IsHooked: true}, true, machine.HookKeep},
		"not deleting, stale wait": {
			machine.Object{IsHooked: true, AwaitsHook: true}, true, machine.HookKeep,
		},
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
