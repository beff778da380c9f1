package leader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/control/review"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// A leaderHarness is a Leader whose rounds and clock the test controls.
type leaderHarness struct {
	*storetest.Fixture
	t        *testing.T
	store    *clusterstore.Store
	leader   *Leader
	reviewer *review.Reviewer
	log      testlog.Buffer

	mu       sync.Mutex // guards the fields below
	ahead    time.Duration
	recorded []string
}

func newHarness(t *testing.T, f *storetest.Fixture, change ...func(*Options)) *leaderHarness {
	t.Helper()
	h := &leaderHarness{Fixture: f, t: t, store: f.OpenStore(
		func(o *clusterstore.Options) {
			o.ProbeInterval, o.ZoneLabel = time.Millisecond, corev1.LabelTopologyZone
		})}
	o := Options{
		Store: h.store, Wait: time.Second, Log: slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), &h.log), nil)),
		Registerer: prometheus.NewRegistry(),
		Now: func() time.Time {
			h.mu.Lock()
			defer h.mu.Unlock()
			return time.Now().Add(h.ahead)
		},
		RecordEvent: func(_ *corev1.ObjectReference, eventType, reason, _ string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.recorded = append(h.recorded, eventType+" "+reason)
		},
	}
	for _, c := range change {
		c(&o)
	}
	h.leader = newLeader(o)
	h.reviewer = review.New(review.Options{Store: h.store})
	return h
}

// review returns the decision of a review that must not fail.
func (h *leaderHarness) review(t *testing.T, req quorum.Request) quorum.Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	decision, err := h.reviewer.Review(ctx, req)
	require.NoError(t, err)
	return decision
}

func (h *leaderHarness) advance(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ahead += d
}

// events returns the types and reasons of the recorded events.
func (h *leaderHarness) events() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.recorded...)
}

// reconcileAll runs one round of the leader.
func (h *leaderHarness) reconcileAll() error {
	w, err := world.Read(h.t.Context(), h.leader.Store)
	require.NoError(h.t, err)
	return h.leader.reconcileAll(h.t.Context(), w)
}

// run runs the leader until ctx ends.
func (h *leaderHarness) run(ctx context.Context) error {
	runnables, err := world.Loop{Store: h.leader.Store, Log: h.leader.Log}.Runnables(h.leader.controller())
	if err != nil {
		return err
	}
	return runnables[0].Start(ctx)
}

// reconcileUntil runs rounds of the leader until the object is as wanted. The leader's
// cache may lag behind the writes of the test.
func (h *leaderHarness) reconcileUntil(what string, wanted func(*v1alpha1.EtcdCluster) bool) *v1alpha1.EtcdCluster {
	h.t.Helper()
	c := h.EmptyCluster()
	require.Eventually(h.t, func() bool {
		if err := h.reconcileAll(); err != nil {
			h.t.Logf("a round is incomplete: %v", err)
			return false
		}
		if h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(c), c) != nil {
			return false
		}
		c = h.Cluster()
		return wanted(c)
	}, storetest.WaitTimeout, storetest.PollInterval, what)
	return c
}

// probeTimes advances the clock in n steps and makes the leader probe after each.
func (h *leaderHarness) probeTimes(n int, step time.Duration) {
	h.t.Helper()
	for range n {
		h.advance(step)
		before := h.Cluster().Spec.Nonce
		h.reconcileUntil("a probe", func(c *v1alpha1.EtcdCluster) bool { return c.Spec.Nonce != before })
	}
}

// bindAll runs the leader until it has bound all three members.
func (h *leaderHarness) bindAll() *v1alpha1.EtcdCluster {
	h.t.Helper()
	return h.reconcileUntil("three bindings", func(c *v1alpha1.EtcdCluster) bool { return len(c.Spec.Members) == 3 })
}

// grant writes a grant for the i-th node, as a review some time ago would have.
func (h *leaderHarness) grant(i int, ago time.Duration) {
	h.t.Helper()
	c := h.Cluster()
	_, err := h.store.Patch(h.t.Context(), c, clusterstore.ReplaceGrants(c,
		clusterstore.WithGrant(c.Spec.Grants, v1alpha1.Grant{
			NodeUID: h.Nodes[i].UID, Node: h.Nodes[i].Name, Members: []v1alpha1.MemberID{h.MemberID(i)},
			Machine: &v1alpha1.Door{Time: metav1.NewTime(time.Now().Add(-ago)), User: "alice"},
		})))
	require.NoError(h.t, err)
}

func (h *leaderHarness) hasGrant(i int) bool {
	return storetest.GrantFor(h.Cluster(), h.Nodes[i].UID) != nil
}

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
	config := storetest.NewServer(t)
	for i, test := range []struct {
		name string
		run  func(*testing.T, *storetest.Fixture)
	}{
		{"announced cluster", fromAnnouncements},
		{"false claim", falseClaim},
		{"cluster limit per node", clusterLimitPerNode},
		{"observations of a deleted node", removedObservations},
		{"node deleted without a grant", tombstone},
		{"role given and taken", roleGivenAndTaken},
		{"member on a host that is no Node", distinctServers},
		{"node of a retired cluster", retiredCluster},
		{"grant settled by hand", settledByHand},
		{"drained node", drainedNode},
		{"removed label", removedLabel},
		{"node listed by two others", listedByOthers},
		{"summary with marked nodes", summaryWithMarks},
		{"summary without probes", summaryWithoutProbes},
		{"running loop", runningLoop},
		{"objects that cannot be read", lastingErrors},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, storetest.New(t, config, 0x40+i)) })
	}
}

func fromAnnouncements(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	c := h.bindAll()
	for i, n := range f.Nodes {
		require.Equal(t, n.UID, bindingOf(c, f.MemberID(i)))
	}
	require.Empty(t, c.Spec.Grants)
	require.Contains(t, h.events(), "Normal Bound")

	c = h.reconcileUntil("a summary",
		func(c *v1alpha1.EtcdCluster) bool { return c.Status.MayLose != nil && *c.Status.MayLose == 1 })
	require.Equal(t, []int32{3, 3, 2}, []int32{*c.Status.Voters, *c.Status.Healthy, *c.Status.Quorum})
	require.True(t, meta.IsStatusConditionTrue(c.Status.Conditions, "Visible"))
	require.True(t, meta.IsStatusConditionTrue(c.Status.Conditions, "Bound"))
	require.Len(t, c.Observations, 3, "the summary must not change the observations")
	sample := func(metric, labels string, value int) string {
		return fmt.Sprintf(`holdfast_etcd_%s{etcd_cluster="%s"%s} %d`, metric, f.ClusterID, labels, value)
	}
	requireMetrics(t, h.leader.metrics, []string{
		sample("list_known", "", 1), sample("voters", "", 3), sample("healthy_voters", "", 3),
		sample("expendable_voters", "", 1), sample("members_unseen", "", 0), sample("members_without_node", "", 0),
		sample("grants", `,reason="Deletion"`, 0),
	}, []string{"holdfast_etcd_oldest_grant_timestamp_seconds", "holdfast_etcd_zone"})

	// A round without news writes nothing and requests no probe.
	for range 3 {
		require.NoError(t, h.reconcileAll())
	}
	calm := f.Cluster().ResourceVersion
	for range 3 {
		require.NoError(t, h.reconcileAll())
	}
	require.Equal(t, calm, f.Cluster().ResourceVersion)

	// The created object answers deletions.
	decision := h.review(t, f.Request(1))
	require.True(t, decision.Allowed, decision.Message)
	h.reconcileUntil("a summary with a loss", func(c *v1alpha1.EtcdCluster) bool {
		return c.Status.MayLose != nil && *c.Status.MayLose == 0 && *c.Status.Healthy == 2
	})
	requireMetrics(t, h.leader.metrics, []string{
		"holdfast_webhook_open_grants 1", sample("grants", `,reason="Deletion"`, 1), sample("expendable_voters", "", 0),
	}, nil)

	for i, zone := range []string{"a", "a", "b"} {
		f.PatchNode(i, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, zone))
	}
	h.reconcileUntil("zones", func(c *v1alpha1.EtcdCluster) bool {
		zones := h.leader.states[c.UID].zones
		return len(zones) == 2 && zones[0].Voters == 2
	})
	requireMetrics(t, h.leader.metrics, []string{
		sample("zone_voters", `,zone="a"`, 2), sample("zone_holds_quorum", `,zone="a"`, 1),
		sample("zone_voters", `,zone="b"`, 1), sample("zone_holds_quorum", `,zone="b"`, 0),
	}, nil)
}

// summaryWithMarks checks that the summary counts as a verdict would: not the member on a node that
// kured reboots, and not the member on a node that is out of service.
func summaryWithMarks(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	healthy := func(n int32, text string) {
		t.Helper()
		h.reconcileUntil("a summary with this number of healthy members", func(c *v1alpha1.EtcdCluster) bool {
			visible := meta.FindStatusCondition(c.Status.Conditions, "Visible")
			return c.Status.Healthy != nil && *c.Status.Healthy == n && strings.Contains(visible.Message, text)
		})
	}
	healthy(3, "")
	f.PatchNode(0, `{"metadata":{"annotations":{"weave.works/kured-reboot-in-progress":"2026-05-01T11:55:00Z"}},
		"spec":{"unschedulable":true}}`)
	healthy(2, "is being rebooted by kured")
	f.PatchNode(1, `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute"}]}}`)
	healthy(1, "is out of service (taint node.kubernetes.io/out-of-service)")
	f.PatchNode(0, `{"spec":{"unschedulable":false}}`)
	f.PatchNode(1, `{"spec":{"taints":null}}`)
	healthy(3, "")
}

// summaryWithoutProbes forbids the leader to write nonces. Observations with the last nonce do not
// stay true without limit.
func summaryWithoutProbes(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f)
	h.bindAll()
	h.reconcileUntil("a summary", func(c *v1alpha1.EtcdCluster) bool { return c.Status.Voters != nil })
	sample := fmt.Sprintf(`holdfast_etcd_list_known{etcd_cluster="%s"} `, f.ClusterID)
	requireMetrics(t, h.leader.metrics, []string{sample + "1"}, nil)
	denied := &faultyClient{Client: f.Client}
	h.leader.Store = f.OpenStore(func(o *clusterstore.Options) { o.Client = denied })
	denied.isPatchDenied.Store(true)
	h.advance(4 * time.Minute)
	require.Eventually(t, func() bool {
		require.Error(t, h.reconcileAll())
		return meta.IsStatusConditionFalse(f.Cluster().Status.Conditions, "Visible")
	}, storetest.WaitTimeout, storetest.PollInterval)
	status := f.Cluster().Status
	require.Equal(t, []*int32{nil, nil}, []*int32{status.Voters, status.MayLose})
	require.NotEmpty(t, meta.FindStatusCondition(status.Conditions, "Visible").Message)
	requireMetrics(t, h.leader.metrics, []string{sample + "0"}, nil)
	denied.isPatchDenied.Store(false)
	h.reconcileUntil("a summary again", func(c *v1alpha1.EtcdCluster) bool { return c.Status.Voters != nil })
}

// lastingErrors makes the read of a Node fail, and then that of an EtcdObservation. The leader must
// not probe in every round: each nonce wakes the loop, and makes every agent probe every member.
func lastingErrors(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f, func(o *Options) { o.Pause = 50 * time.Millisecond })
	h.bindAll()
	for _, unreadable := range []string{f.Nodes[1].Name, v1alpha1.ObservationName(f.ClusterID, f.Nodes[1].Name)} {
		faulty, registry := &faultyClient{Client: f.Client}, prometheus.NewRegistry()
		h.leader.Store = f.OpenStore(func(o *clusterstore.Options) {
			o.Reader, o.Registerer, o.ProbeInterval = faulty, registry, time.Millisecond
		})
		faulty.unreadable.Store(&unreadable)
		h.advance(2 * time.Minute)
		h.log.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		var g errgroup.Group
		g.Go(func() error { return h.run(ctx) })
		h.log.RequireText(t, "the object cannot be read", storetest.WaitTimeout)
		require.NoError(t, loop.Wait(ctx, time.Second, nil)) // for the rounds that the answers cause
		cancel()
		require.NoError(t, g.Wait())
		require.InDelta(t, 1.5, counter(t, registry, "holdfast_webhook_asks_total"), 0.5)
	}
}

// counter returns the value of a counter.
func counter(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(t, "no metric", name)
	return 0
}

// A faultyClient fails some requests.
type faultyClient struct {
	client.Client
	isPatchDenied atomic.Bool
	unreadable    atomic.Pointer[string] // the name of an object
}

func (c *faultyClient) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if c.isPatchDenied.Load() {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "etcdclusters"}, o.GetName(), nil)
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

func (c *faultyClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if name := c.unreadable.Load(); name != nil && *name == key.Name {
		return errors.New("the object cannot be read")
	}
	return c.Client.Get(ctx, key, o, opts...)
}

func runningLoop(t *testing.T, f *storetest.Fixture) {
	f.RunAgents()
	h := newHarness(t, f, func(o *Options) { o.Tick, o.Pause = time.Hour, storetest.PollInterval })
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return h.run(ctx) })
	bound := func(uid types.UID) func() bool {
		return func() bool {
			c := f.EmptyCluster()
			err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c)
			return err == nil && bindingOf(c, f.MemberID(0)) == uid
		}
	}
	require.Eventually(t, bound(f.Nodes[0].UID), storetest.WaitTimeout, storetest.PollInterval)
	f.DeleteNode(0)
	require.Eventually(t, func() bool { return len(f.Cluster().Spec.Grants) == 1 }, storetest.WaitTimeout,
		storetest.PollInterval)
	h.registerAgain(0)
	require.Eventually(t, bound(f.Nodes[0].UID), storetest.WaitTimeout, storetest.PollInterval)
	cancel()
	require.NoError(t, g.Wait())
}
