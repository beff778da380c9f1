package plugin

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/internal/clusterstore/storetest"
	"github.com/holdfast-dev/holdfast/internal/leader"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

// TestSettleWithLeader ends grants with a running leader, whose clock the test advances: a leader
// ends no grant by hand that it has known for less than three minutes.
func TestSettleWithLeader(t *testing.T) {
	config := storetest.NewServer(t)
	f := storetest.New(t, config, 1)
	f.CreateBound()
	for _, i := range []int{0, 1} {
		grant(t, f, i)
	}
	var ahead atomic.Int64
	runLeader(t, f, func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) })

	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, apiserver.WriteKubeconfig(kubeconfig, config))
	settle := func(name string) (code int, out string) {
		var printed bytes.Buffer
		streams := Streams{In: strings.NewReader(""), Out: &printed, ErrOut: &printed}
		code = Execute(t.Context(), streams, "test", []string{"--kubeconfig=" + kubeconfig, "settle", name, "--yes"})
		return code, printed.String()
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

// grant records that the deletion of a Node was allowed long ago.
func grant(t *testing.T, f *storetest.Fixture, i int) {
	t.Helper()
	c := f.Cluster()
	before := c.DeepCopy()
	c.Spec.Grants = append(c.Spec.Grants, v1alpha1.Grant{
		Node: f.Nodes[i].Name, NodeUID: f.Nodes[i].UID, Members: []v1alpha1.MemberID{f.MemberID(i)},
		Time: metav1.NewTime(time.Now().Add(-time.Hour)), User: "alice",
	})
	require.NoError(t, f.Client.Patch(t.Context(), c, client.MergeFrom(before)))
}

// runLeader runs the leader of the webhook until the test ends.
func runLeader(t *testing.T, f *storetest.Fixture, now func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l, err := leader.New(ctx, leader.Options{
		Store: f.OpenStore(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Registerer: prometheus.NewRegistry(),
		ResolveAfter: time.Hour, Now: now,
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}
