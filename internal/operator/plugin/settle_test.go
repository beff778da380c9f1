package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/control/leader"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// settleWithLeader ends grants with a running leader, whose clock the test advances: a leader ends
// no grant by hand that it has known for less than three minutes.
func settleWithLeader(t *testing.T, c *reviewedCluster) {
	f := c.Fixture
	for _, i := range []int{0, 1} {
		grant(t, f, i)
	}
	var ahead atomic.Int64
	runLeader(t, c, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })

	settle := func(name string) (code int, out string) {
		return runTyped(t.Context(), t, "", "--kubeconfig="+c.server.Kubeconfig(), "settle", name, "--yes")
	}
	code, out := settle(f.Nodes[0].Name)
	require.Equal(t, cli.ExitFailure, code)
	require.Contains(t, out, "it has known it for less than 3m0s")
	require.Len(t, f.Cluster().Spec.Grants, 2)

	ahead.Store(int64(quorum.ResolveByHandAfter))
	code, out = settle(f.Nodes[0].Name)
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Contains(t, out, "node "+f.Nodes[0].Name+": the grant has ended")
	require.Len(t, f.Cluster().Spec.Grants, 1)

	// One grant is left, so the name of the cluster is enough.
	code, out = settle(string(f.ClusterID))
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Empty(t, f.Cluster().Spec.Grants)
}

// TestSettleWait: Ctrl-C during the wait is no limit of time that has passed. The webhook still
// ends the grant, so the error has the command that prevents it. One failed read does not end the
// wait.
func TestSettleWait(t *testing.T) {
	for name, want := range map[string]error{"interrupted": context.Canceled, "one failed read": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				types := runtime.NewScheme()
				require.NoError(t, v1alpha1.AddToScheme(types))
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				reads := 0
				kube := fake.NewClientBuilder().WithScheme(types).
					WithObjects(&v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}).
					WithInterceptorFuncs(interceptor.Funcs{Get: func(
						ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption,
					) error {
						reads++
						switch {
						case want != nil:
							interrupt()
						case reads == 1:
							return errors.New("connection reset by peer")
						default:
							into.SetAnnotations(nil)
							return nil
						}
						return c.Get(ctx, key, into, o...)
					}}).Build()
				cluster := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1"}}
				g := clusterGrant{Grant: v1alpha1.Grant{Node: "w1", NodeUID: "u1"}, cluster: cluster}
				s := &session{kube: kube, Streams: Streams{Out: io.Discard}, root: &cobra.Command{}}
				err := s.settleGrant(ctx, g, time.Hour)
				require.ErrorIs(t, err, want)
				if want != nil {
					require.NotContains(t, err.Error(), "1h0m0s")
					require.ErrorContains(t, err, "kubectl annotate etcdcluster c1 holdfast.dev/settle-")
				}
			})
		})
	}
}

func TestSettleWithoutHoldfast(t *testing.T) {
	kube := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return &meta.NoKindMatchError{}
		},
	}).Build()
	err := (&session{kube: kube}).settle(t.Context(), "w1", time.Minute)
	require.ErrorContains(t, err, "Holdfast is not installed in this cluster")
}

// grant records that the deletion of a Node was allowed long ago.
func grant(t *testing.T, f *storetest.Fixture, i int) {
	t.Helper()
	c := f.Cluster()
	before := c.DeepCopy()
	c.Spec.Grants = append(c.Spec.Grants, v1alpha1.Grant{
		Node: f.Nodes[i].Name, NodeUID: f.Nodes[i].UID, Members: []v1alpha1.MemberID{f.MemberID(i)},
		Delete: &v1alpha1.Door{Time: metav1.NewTime(time.Now().Add(-time.Hour)), User: "alice"},
	})
	require.NoError(t, f.Client.Patch(t.Context(), c, client.MergeFrom(before)))
}

// runLeader runs the leader of the webhook until the test ends.
func runLeader(t *testing.T, c *reviewedCluster, now func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	store, log := c.openStore(), slog.New(slog.NewTextHandler(t.Output(), nil))
	l := leader.New(leader.Options{
		Store: store, Log: log, Registerer: prometheus.NewRegistry(), ResolveAfter: time.Hour, Now: now,
	})
	loops, err := world.Loop{Store: store, Log: log}.Runnables(l)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- loops[0].Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// testSettle has no webhook that would end the grants, unlike settleWithLeader.
func testSettle(t *testing.T, f *changeFixture) {
	f.addOpenNode(t, "settle-1")
	old, young := time.Now().Add(-2*time.Hour), time.Now().Add(-time.Minute)
	grant := func(node, uid string, at time.Time) string {
		return fmt.Sprintf(`{"node":%q,"nodeUID":%q,"members":["a","b"],"delete":{"user":"alice","time":%q}}`,
			node, uid, at.UTC().Format(time.RFC3339))
	}
	for name, grants := range map[string]string{
		`"c1"`: grant("settle-1", string(f.node(t, "settle-1").UID), old),
		`"c2"`: grant("settle-2", "u2", young),
		`"c3"`: grant("settle-3", "u3", old) + "," + grant("settle-3", "u4;x", old),
		`"c4","annotations":{"holdfast.dev/settle":"u9"}`: grant("settle-4", "u5", old),
	} {
		create(t, f.Server, fmt.Sprintf(`{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster",
			"metadata":{"name":%s},"spec":{"grants":[%s]}}`, name, grants))
	}
	for name, test := range map[string]struct{ user, arg, want string }{
		"unknown":     {operator, "nowhere", `open grant for "nowhere"; nodes with an open grant: settle-1, settle-2,`},
		"too young":   {operator, "settle-2", "the grant for node settle-2 is too young"},
		"several":     {operator, "c3", `"c3" has several open grants; settle them one by one`},
		"busy":        {operator, "c4", "the webhook still has to settle another grant of etcd cluster c4 (node UID u9)"},
		"no right":    {reader, "c1", "you have no permission to patch etcdclusters.holdfast.dev"},
		"no terminal": {operator, "c1", "its input is not a terminal"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"settle", test.arg}
			if test.user == reader {
				args = append(args, "--yes")
			}
			code, out := f.run(t, test.user, "", args...)
			require.NotEqual(t, cli.ExitSuccess, code)
			require.Contains(t, out, test.want)
		})
	}
	code, out := f.run(t, operator, "", "settle", "settle-1", "--dry-run")
	require.Equal(t, cli.ExitSuccess, code, out)
	requireScript(t, out)
	compareOutput(t, "settle.txt", out)
	code, out = f.run(t, operator, "", "settle", "u4;x", "--dry-run")
	require.Equal(t, cli.ExitSuccess, code, out)
	require.Contains(t, out, " holdfast.dev/settle='u4;x'\n", "a shell must not run what the webhook has written")
	code, out = f.run(t, operator, "", "settle", "u4;x", "--yes", "--timeout=10ms")
	require.Equal(t, cli.ExitFailure, code)
	require.Contains(t, out, "the webhook has not settled the grant for node settle-3: the time is up (10ms)")
	c3, err := f.Client().RESTClient().Get().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters/c3").DoRaw(t.Context())
	require.NoError(t, err)
	require.Contains(t, string(c3), `"holdfast.dev/settle":"u4;x"`)
}
