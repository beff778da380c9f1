package machinehook_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

func TestHooks(t *testing.T) {
	f := newFixture(t)
	f.setNodes(node("etcd", true), node("worker", false))
	f.add(t, "probe")
	f.add(t, "etcd")
	f.add(t, "worker")

	t.Run("only the Machine of an etcd node is hooked", func(t *testing.T) {
		f.waitForHook(t, "etcd", true)
		f.waitForRounds(t)
		f.waitForHook(t, "worker", false)
	})
	t.Run("nothing is written while nothing changes", func(t *testing.T) {
		before := f.get(t, "etcd").GetResourceVersion()
		f.waitForRounds(t)
		require.Equal(t, before, f.get(t, "etcd").GetResourceVersion())
	})
	t.Run("a node that is bound but has lost its label", func(t *testing.T) {
		f.set(func(f *fixture) {
			f.clusters = []*v1alpha1.EtcdCluster{{Spec: v1alpha1.EtcdClusterSpec{
				Members: []v1alpha1.Binding{{MemberID: "a", Node: "etcd", NodeUID: "uid-etcd"}},
			}}}
		})
		f.setNodes(node("etcd", false), node("worker", false))
		f.waitForRounds(t)
		f.waitForHook(t, "etcd", true)
		again := node("etcd", false)
		again.UID = "uid-etcd-again"
		f.setNodes(again, node("worker", false)) // F84: the agent has not reported yet
		f.waitForRounds(t)
		f.waitForHook(t, "etcd", true)
		f.set(func(f *fixture) { f.clusters = nil })
		f.waitForHook(t, "etcd", false)
		f.setNodes(node("etcd", true), node("worker", false))
		f.waitForHook(t, "etcd", true)
	})
	t.Run("a stale cache without the Node", func(t *testing.T) {
		f.set(func(f *fixture) { f.cached = nil })
		f.requireHookStays(t)
		f.set(func(f *fixture) { f.live, f.liveErr = nil, errors.New("timeout") })
		f.requireHookStays(t)
		f.set(func(f *fixture) { f.liveErr = nil })
		f.setNodes(node("etcd", true), node("worker", false))
	})
	t.Run("F43 machines that are about to end", func(t *testing.T) { testEnding(t, f) })
	t.Run("a deletion", func(t *testing.T) { testDeletion(t, f) })
	t.Run("a Machine that is being deleted without a hook", func(t *testing.T) {
		f.add(t, "late")
		f.remove(t, "late")
		f.set(func(f *fixture) { f.cached = append(f.cached, node("late", true)) })
		f.waitForRounds(t)
		f.waitForHook(t, "late", false)
	})
	t.Run("served versions", func(t *testing.T) { testServedVersions(t, f) })
}

// testServedVersions: an upgrade of Cluster API, or its rollback, changes the versions in which the
// API server has Machines.
func testServedVersions(t *testing.T, f *fixture) {
	ended := []byte(`{"metadata":{"finalizers":null}}`)
	_, err := f.machines.Patch(t.Context(), "etcd", types.MergePatchType, ended, metav1.PatchOptions{})
	require.NoError(t, err)
	etcd, ending := node("etcd", true), node("ending", true)
	f.setNodes(etcd)
	f.add(t, "etcd")
	f.add(t, "ending")
	f.waitForHook(t, "etcd", true)
	const isEnding = "Machine default/ending of node ending is being deleted"
	f.remove(t, "ending")
	f.setNodes(etcd, ending)
	require.Equal(t, isEnding, f.controller.Ending(t.Context(), v1alpha1.Grant{Node: "ending"}))

	for _, version := range []string{"v1beta1", "v1beta2"} {
		f.serve(t, version)
		f.add(t, version)
		f.setNodes(etcd, ending, node(version, true))
		f.waitForHook(t, version, true)
		require.Equal(t, isEnding, f.controller.Ending(t.Context(), v1alpha1.Grant{Node: "ending"}))
		require.Empty(t, f.controller.Ending(t.Context(), v1alpha1.Grant{Node: "etcd"}))
	}

	// A version that Holdfast cannot read. A Machine may be about to end, and none loses its hook.
	f.serve(t, "v1beta3")
	f.setNodes()
	const unknown = "it is not known whether the machine of node etcd is about to end"
	g := v1alpha1.Grant{Node: "etcd"}
	require.Eventually(t, func() bool { return f.controller.Ending(t.Context(), g) == unknown }, soon, poll)
	require.Equal(t, unknown, f.newController(t).Ending(t.Context(), g), "of a leader that has just started")
	f.requireHookStays(t)
	f.serve(t, "v1beta2")
	f.waitForHook(t, "etcd", false)
}

func testDeletion(t *testing.T, f *fixture) {
	f.set(func(f *fixture) { f.allowed, f.message = false, "1 of 3 would stay" })
	f.remove(t, "etcd")
	f.waitForRounds(t)
	f.set(func(f *fixture) { require.Empty(t, f.reviews, "Cluster API has not drained the node yet") })

	f.drained(t, "etcd")
	reviews := func() (n int) {
		f.set(func(f *fixture) { n = len(f.reviews) })
		return n
	}
	require.Eventually(t, func() bool { return reviews() > 2 }, soon, poll)
	f.set(func(f *fixture) {
		require.Equal(t, "etcd for Cluster API (Machine default/etcd)", f.reviews[0])
		require.Equal(t, []string{"etcd Warning DeletionRefused the machine may not end: 1 of 3 would stay"}, f.events)
		f.allowed, f.message, f.cached = true, "2 of 3 stay", nil
	})
	f.requireHookStays(t) // The cache does not have the Node.
	f.set(func(f *fixture) { f.cached = f.live })
	f.waitForHook(t, "etcd", false)
	done := reviews()
	f.waitForRounds(t)
	f.set(func(f *fixture) {
		require.Equal(t, "etcd Normal DeletionAllowed the machine may end: 2 of 3 stay", f.events[len(f.events)-1])
	})
	require.LessOrEqual(t, reviews(), done+1, "a Machine without a hook is not reviewed")
	f.waitForHook(t, "etcd", false)
}
