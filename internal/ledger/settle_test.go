package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

func reborn(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	old := w.nodes[0].UID
	w.delete(0)
	r.rebirth(0)
	c := r.until("the new binding", func(c *v1alpha1.EtcdCluster) bool { return bindingOf(c, w.member(0)) == w.nodes[0].UID })
	require.NotNil(t, grantFor(c, old), "the tombstone comes before the new binding, and outlives it")
	ruling := judge(t, r.leader.book, w.question(1))
	require.False(t, ruling.Allowed, "the machine may yet be terminated")

	r.looks(9, time.Minute)
	w.see(func() { w.silent[w.nodes[0].Name] = true })
	r.looks(1, 30*time.Second) // an agent that comes late once
	w.see(func() { w.silent[w.nodes[0].Name] = false })
	r.looks(1, 30*time.Second)
	r.looks(8, time.Minute)
	require.NotNil(t, grantFor(w.now(), old), "eighteen minutes are too few")
	r.looks(4, time.Minute)
	require.Nil(t, grantFor(w.now(), old))
	require.Contains(t, r.told(), "Settled")
	ruling = judge(t, r.leader.book, w.question(1))
	require.True(t, ruling.Allowed, ruling.Message)
}

// rebirth registers the i-th node anew: same name and address, another UID.
func (r *reign) rebirth(i int) {
	r.t.Helper()
	old := r.nodes[i]
	r.nodes[i] = r.register(old.Name, old.Status.Addresses[0].Address, r.member(i))
	require.NotEqual(r.t, old.UID, r.nodes[i].UID)
}

func gap(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	old := w.nodes[0].UID
	w.delete(0)
	r.rebirth(0)
	r.until("the new binding", func(c *v1alpha1.EtcdCluster) bool { return bindingOf(c, w.member(0)) == w.nodes[0].UID })
	r.looks(15, time.Minute)
	w.see(func() { w.list[0].Healthy = false })
	r.looks(1, time.Minute)
	w.see(func() { w.list[0].Healthy = true })
	r.looks(10, time.Minute)
	require.NotNil(t, grantFor(w.now(), old), "the agent did not prove its member once")
	r.looks(2, time.Hour) // a leader that slept has seen nothing
	require.NotNil(t, grantFor(w.now(), old))
}

func left(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	require.True(t, judge(t, r.leader.book, w.question(0)).Allowed)
	w.delete(0)
	r.looks(3, time.Minute)
	require.True(t, r.granted(0), "the member is dead, and in the list")

	w.see(func() { w.list, w.silent[w.nodes[0].Name] = w.list[1:], true })
	r.looks(1, time.Minute)
	c := r.until("no binding", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 2 })
	require.NotNil(t, grantFor(c, w.nodes[0].UID), "one look is not enough")
	r.looks(1, 20*time.Second)
	require.True(t, r.granted(0), "twenty seconds are not enough")
	r.looks(1, 20*time.Second)
	require.False(t, r.granted(0))
	c = w.now()
	require.Equal(t, int64(2), c.Spec.Ledger)
	require.False(t, judge(t, r.leader.book, w.question(1)).Allowed, "of two voters none may be lost")
}

func silentSettlement(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	require.True(t, judge(t, r.leader.book, w.question(0)).Allowed)
	w.delete(0)
	// The last that was heard is a list without the member, from agents that say nothing any more.
	w.see(func() { w.list = w.list[1:] })
	r.looks(1, time.Minute)
	w.see(func() {
		for _, n := range w.nodes {
			w.silent[n.Name] = true
		}
	})
	r.looks(4, time.Minute)
	require.True(t, r.granted(0))
}

func unharmed(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	r.grant(0, 4*time.Minute)
	r.looks(2, 20*time.Second)
	require.True(t, r.granted(0), "a DELETE may still be under way")
	r.looks(4, time.Minute)
	require.True(t, r.granted(0), "by the clock of who wrote it nine minutes have passed, by the leader's five have not")
	r.looks(1, 25*time.Second) // five minutes and five seconds: the first look that finds the reason
	require.True(t, r.granted(0))
	r.grant(0, 0) // the deletion is allowed once more
	r.looks(3, 30*time.Second)
	require.True(t, r.granted(0), "a renewed grant starts anew")
	r.looks(6, time.Minute)
	require.False(t, r.granted(0))
}

func byHand(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	r.grant(0, 0)
	r.grant(1, 0)
	settle := func(uid types.UID) {
		body := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, protect.SettleAnnotation, uid)
		require.NoError(t, w.client.Patch(t.Context(), w.object(), client.RawPatch(types.MergePatchType, []byte(body))))
		r.until("the annotation is gone", func(c *v1alpha1.EtcdCluster) bool { return c.Annotations[protect.SettleAnnotation] == "" })
	}
	settle("somebody else")
	require.True(t, r.granted(0))
	require.Contains(t, r.told(), "NoSuchGrant")
	settle(w.nodes[0].UID)
	require.True(t, r.granted(0), "its deletion may be under way")
	require.Contains(t, r.told(), "GrantTooYoung")
	r.pass(protect.ByHandAfter)
	settle(w.nodes[0].UID)
	require.False(t, r.granted(0))
	require.True(t, r.granted(1), "only the named one ends")
	require.Contains(t, r.told(), "Settled")
	require.Equal(t, int64(3), w.now().Spec.Ledger)

	// A Node that is gone takes its binding with it, or its tombstone would come back.
	w.delete(1)
	settle(w.nodes[1].UID)
	r.looks(2, time.Minute)
	c := w.now()
	require.Empty(t, c.Spec.Grants)
	require.Empty(t, bindingOf(c, w.member(1)))
}
