package ledger

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// reign is a Leader whose rounds and clock the test drives.
type reign struct {
	*world
	leader *Leader

	mu      sync.Mutex // guards what follows
	ahead   time.Duration
	stories []string
}

func (w *world) reign(change ...func(*LeaderOptions)) *reign {
	w.t.Helper()
	r := &reign{world: w}
	o := LeaderOptions{
		Now: func() time.Time {
			r.mu.Lock()
			defer r.mu.Unlock()
			return time.Now().Add(r.ahead)
		},
		Tell: func(_ *v1alpha1.EtcdCluster, reason, _ string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stories = append(r.stories, reason)
		},
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	r.leader, err = NewLeader(w.t.Context(), w.book(func(o *Options) { o.Wait, o.Pace = time.Second, time.Millisecond }), o)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { r.leader.forget(nil) })
	return r
}

// pass moves the leader's clock on.
func (r *reign) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead += d
}

func (r *reign) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.stories...)
}

// until has the leader work until the object is as wanted; its cache may lag behind what the test has done.
func (r *reign) until(what string, wanted func(*v1alpha1.EtcdCluster) bool) *v1alpha1.EtcdCluster {
	r.t.Helper()
	c := r.object()
	require.Eventually(r.t, func() bool {
		if err := r.leader.round(r.t.Context()); err != nil {
			r.t.Logf("a round is incomplete: %v", err)
			return false
		}
		err := r.client.Get(r.t.Context(), client.ObjectKeyFromObject(c), c)
		return err == nil && wanted(c)
	}, eventually, often, what)
	return c
}

// looks lets the time pass in steps, with a look at each of them.
func (r *reign) looks(n int, step time.Duration) {
	r.t.Helper()
	for range n {
		r.pass(step)
		before := r.now().Spec.Nonce
		r.until("a look", func(c *v1alpha1.EtcdCluster) bool { return c.Spec.Nonce != before })
	}
}

// bindAll has the leader bind all three members.
func (r *reign) bindAll() *v1alpha1.EtcdCluster {
	r.t.Helper()
	return r.until("three bindings", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 3 })
}

// grant writes a grant for the i-th node as an allow a while ago would have.
func (r *reign) grant(i int, ago time.Duration) {
	r.t.Helper()
	c := r.now()
	_, err := r.leader.book.patch(r.t.Context(), c, replaceGrants(c, withGrant(c.Spec.Grants, v1alpha1.Grant{
		NodeUID: r.nodes[i].UID, Node: r.nodes[i].Name, Members: []v1alpha1.MemberID{r.member(i)},
		Time: metav1.NewTime(time.Now().Add(-ago)), User: "alice",
	})))
	require.NoError(r.t, err)
}

func (r *reign) granted(i int) bool { return grantFor(r.now(), r.nodes[i].UID) != nil }

// bindingOf returns the UID of the Node that the member is bound to.
func bindingOf(c *v1alpha1.EtcdCluster, id v1alpha1.MemberID) types.UID {
	for _, b := range c.Spec.Members {
		if b.MemberID == id {
			return b.NodeUID
		}
	}
	return ""
}

func TestLeader(t *testing.T) {
	config := newServer(t)
	for i, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"announcements become an object, bindings and a summary", fromAnnouncements},
		{"a claim to a member that lives elsewhere is refused", falseClaim},
		{"no more objects are made than allowed", tooMany},
		{"one node has no more objects made than its share, whatever it announces in turn", tooManyOfOne},
		{"what a node that is gone has seen is removed, unless it is bound", swept},
		{"a node that vanishes without a grant leaves one, and its binding stands", tombstone},
		{"a node that goes after its member has left is no loss", leftFirst},
		{"a dead node of a cluster that is no more goes by the steps of its refusals", retired},
		{"a node that registers anew is bound after the tombstone, and settles after twenty minutes", reborn},
		{"a gap in the proofs starts the twenty minutes anew", gap},
		{"a member that has left the list is settled and unbound", left},
		{"silence settles nothing", silentSettlement},
		{"a node that lives on is settled, a renewed grant is not", unharmed},
		{"an operator settles by name", byHand},
		{"a label that was taken off comes back", relabelled},
		{"a node whose agent has not looked yet is labelled by what two others list", unannounced},
		{"nobody's answer leaves no number in the summary", unseen},
		{"the loop wakes by itself and ends with its context", running},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newWorld(t, config, 0x40+i)) })
	}
}

func fromAnnouncements(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	c := r.bindAll()
	for i, n := range w.nodes {
		require.Equal(t, n.UID, bindingOf(c, w.member(i)))
	}
	require.Empty(t, c.Spec.Grants)
	require.Contains(t, r.told(), "Bound")

	c = r.until("a summary", func(c *v1alpha1.EtcdCluster) bool { return c.Status.MayLose != nil && *c.Status.MayLose == 1 })
	require.Equal(t, []int32{3, 3, 2}, []int32{*c.Status.Voters, *c.Status.Healthy, *c.Status.Quorum})
	require.True(t, meta.IsStatusConditionTrue(c.Status.Conditions, "Visible"))
	require.Len(t, c.Status.Observations, 3, "the summary must leave the observations alone")

	// A round that finds nothing new writes nothing, and asks nobody.
	for range 3 {
		require.NoError(t, r.leader.round(t.Context()))
	}
	calm := w.now().ResourceVersion
	for range 3 {
		require.NoError(t, r.leader.round(t.Context()))
	}
	require.Equal(t, calm, w.now().ResourceVersion)

	// What was made answers deletions.
	ruling := judge(t, r.leader.book, w.question(1))
	require.True(t, ruling.Allowed, ruling.Message)
	r.until("a summary with a loss", func(c *v1alpha1.EtcdCluster) bool {
		return c.Status.MayLose != nil && *c.Status.MayLose == 0 && *c.Status.Healthy == 2
	})
}

func falseClaim(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	before := r.bindAll()
	worker := w.register("worker-"+string(w.id), "10.99.0.1", w.member(0))
	liar := w.register("liar-"+string(w.id), "10.99.0.2", "beef")
	t.Cleanup(func() {
		require.NoError(t, w.client.Delete(context.WithoutCancel(t.Context()), worker))
		require.NoError(t, w.client.Delete(context.WithoutCancel(t.Context()), liar))
	})
	r.until("a refused claim", func(*v1alpha1.EtcdCluster) bool { return len(r.leader.memories[before.UID].said["refused"]) > 0 })
	r.looks(2, 2*time.Minute)
	require.Equal(t, before.Spec.Members, w.now().Spec.Members)
}

func tombstone(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	w.delete(0)
	c := r.until("a tombstone", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Grants) == 1 })
	g := grantFor(c, w.nodes[0].UID)
	require.NotNil(t, g)
	require.Equal(t, []v1alpha1.MemberID{w.member(0)}, g.Members)
	require.Empty(t, g.User)
	require.WithinDuration(t, time.Now(), g.Time.Time, time.Minute)
	require.Equal(t, w.nodes[0].UID, bindingOf(c, w.member(0)), "a tombstone's binding stays")
	require.Contains(t, r.told(), "Tombstone")
	require.False(t, judge(t, r.leader.book, w.question(1)).Allowed, "m0 still answers, but its node is gone")
}

// leftFirst is kubespray's order: the member leaves, the host is reset, its Node goes.
func leftFirst(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	w.see(func() { w.list, w.silent[w.nodes[0].Name] = w.list[1:], true })
	ruling := judge(t, r.leader.book, w.question(0))
	require.True(t, ruling.Allowed, ruling.Message)
	require.Equal(t, protect.NothingToProtect, ruling.Reason)
	w.delete(0)
	c := r.until("its binding to end", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 2 })
	require.Empty(t, c.Spec.Grants)
	require.NotContains(t, r.told(), "Tombstone")
}

func retired(t *testing.T, w *world) {
	r := w.reign() // and no agent
	made := r.until("an object", func(c *v1alpha1.EtcdCluster) bool { return c.UID != "" })
	q := w.question(0)
	refused := judge(t, r.leader.book, q)
	require.Contains(t, refused.Message, "kubectl annotate node "+q.Request.Node+" holdfast.dev/etcd-, and then kubectl delete etcdcluster "+made.Name)
	for _, node := range w.nodes {
		require.NoError(t, w.client.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, protect.AnnouncementAnnotation))))
	}
	require.NoError(t, w.client.Delete(t.Context(), made))
	q.Request.Announced = nil
	require.Eventually(t, func() bool {
		err := r.leader.round(t.Context())
		if err != nil {
			return false // the cache still has the object, and its nonce cannot be written
		}
		refused, err = r.leader.book.Judge(t.Context(), q)
		return err == nil && refused.Reason == protect.UnknownMember
	}, eventually, often)
	require.Contains(t, refused.Message, "kubectl label node "+q.Request.Node+" holdfast.dev/etcd-member-")
	require.NoError(t, r.leader.round(t.Context()))
	require.True(t, apierrors.IsNotFound(w.client.Get(t.Context(), client.ObjectKeyFromObject(made), w.object())), "it is not made anew")
	q.Request.Labelled = false
	ruling, err := r.leader.book.JudgeUnlabelled(t.Context(), q)
	require.NoError(t, err)
	require.True(t, ruling.Allowed, ruling.Message)
}

func unseen(t *testing.T, w *world) {
	w.observe()
	r := w.reign()
	r.bindAll()
	r.until("a summary", func(c *v1alpha1.EtcdCluster) bool { return c.Status.Voters != nil })
	w.see(func() {
		for _, n := range w.nodes {
			w.blind[n.Name] = true
		}
	})
	r.looks(1, 2*time.Minute)
	c := r.until("no numbers", func(c *v1alpha1.EtcdCluster) bool { return c.Status.Voters == nil })
	require.Nil(t, c.Status.MayLose)
	condition := meta.FindStatusCondition(c.Status.Conditions, "Visible")
	require.NotNil(t, condition)
	require.Equal(t, metav1.ConditionFalse, condition.Status)
	require.NotEmpty(t, condition.Message)
}

func running(t *testing.T, w *world) {
	w.observe()
	r := w.reign(func(o *LeaderOptions) { o.Tick, o.Pause = time.Hour, often })
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return r.leader.Run(ctx) })
	bound := func(uid types.UID) func() bool {
		return func() bool {
			c := w.object()
			err := w.client.Get(t.Context(), client.ObjectKeyFromObject(c), c)
			return err == nil && bindingOf(c, w.member(0)) == uid
		}
	}
	require.Eventually(t, bound(w.nodes[0].UID), eventually, often)
	w.delete(0)
	require.Eventually(t, func() bool { return len(w.now().Spec.Grants) == 1 }, eventually, often)
	r.rebirth(0)
	require.Eventually(t, bound(w.nodes[0].UID), eventually, often)
	cancel()
	require.NoError(t, g.Wait())
}
