package spcapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

const (
	namespace = "holdfast-system"
	inventory = "holdfast-spc-inventory"
)

// TestTheInventoryReachesTheAgents publishes with the webhook's rights and reads with an agent's, as they are shipped.
func TestTheInventoryReachesTheAgents(t *testing.T) {
	api := testenv.NewInstalledAPIServer(t)
	_, _, err := api.AddNode(t.Context(), testenv.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	server, options := serve(t)
	client, err := spcapi.NewClient(options)
	require.NoError(t, err)
	changes := &atomic.Int32{}
	reader := &spcapi.Reader{ConfigMaps: configMaps(t, api, "holdfast-agent", "worker-1"), Name: inventory, Log: slog.New(slog.DiscardHandler)}
	publisher := &spcapi.Publisher{
		Client: client, ConfigMaps: configMaps(t, api, "holdfast-webhook", ""), Name: inventory,
		Log: slog.New(slog.DiscardHandler), Interval: 20 * time.Millisecond,
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return publisher.Run(ctx) })
	running.Go(func() error { return reader.Run(ctx, func() { changes.Add(1) }) })
	over := errors.New("the test is over")
	defer func() {
		cancel(over)
		require.ErrorIs(t, running.Wait(), over)
	}()
	require.Nil(t, reader.Latest(), "nothing was read yet, which is not an empty list")

	first := spc.Record{PK: 1, InstanceID: "a", State: "building"}
	server.SetNodes(first)
	reads(t, reader, first)
	ready := spc.Record{PK: 1, InstanceID: "a", State: "running"}
	server.SetNodes(ready)
	reads(t, reader, ready)

	settled, asked := changes.Load(), server.Requests()
	require.Eventually(t, func() bool { return server.Requests() > asked+3 }, 10*time.Second, 5*time.Millisecond)
	require.Equal(t, settled, changes.Load(), "a list that has not changed is not written again")

	server.Fail(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	asked = server.Requests()
	require.Eventually(t, func() bool { return server.Requests() > asked+1 }, 10*time.Second, 5*time.Millisecond)
	reads(t, reader, ready)

	// Somebody deletes the list: machines do not change because it was lost.
	require.NoError(t, api.Client().CoreV1().ConfigMaps(namespace).Delete(t.Context(), inventory, metav1.DeleteOptions{}))
	reads(t, reader, ready)
}

// reads waits until the reader has exactly this record.
func reads(t *testing.T, r *spcapi.Reader, want spc.Record) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := r.Latest()
		require.NotNil(c, got)
		require.Equal(c, []spc.Record{want}, got.Records)
	}, 10*time.Second, 5*time.Millisecond)
}

func configMaps(t *testing.T, api *testenv.APIServer, account, node string) typedcorev1.ConfigMapInterface {
	t.Helper()
	config, err := api.ServiceAccountConfig(t.Context(), namespace, account, node)
	require.NoError(t, err)
	client, err := typedcorev1.NewForConfig(config)
	require.NoError(t, err)
	return client.ConfigMaps(namespace)
}

// A cluster of 15,000 machines must fit into one ConfigMap, whose limit is 1 MiB.
func TestALargeInventoryFits(t *testing.T) {
	large := spc.Inventory{Organization: 111, Cluster: 23391}
	for i := range 15000 {
		large.Records = append(large.Records, spc.Record{
			PK: int64(90000 + i), Cluster: 23391, PoolName: "Default Worker Pool", InstanceID: fmt.Sprintf("netatt9dgn-worker-%d", i),
			ProviderNodeID: fmt.Sprintf("i-0%015x", uint64(i)*0x9e3779b97f4a7c15), Role: "worker", GroupName: "autoscaling-netatt9dgn-pool-1",
			PrivateIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), PublicIP: fmt.Sprintf("198.%d.%d.%d", i*7&255, i*13&255, i&255),
			Size: "c4.xlarge", State: "running",
		})
	}
	packed, err := spcapi.Encode(&large)
	require.NoError(t, err)
	require.Less(t, len(packed), 1<<20)
	t.Logf("%d KiB for %d machines", len(packed)>>10, len(large.Records))
}
