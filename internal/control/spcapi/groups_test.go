package spcapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

// testGroups fills a group and empties it again. The template stays, also with another leader and
// while the pools cannot be read, and an external provider can send it as bytes.
func testGroups(t *testing.T, s *fixture) {
	small := spc.Pool{PK: 1, InstanceID: "spc1-pool-1", Size: "2gb", Autoscaled: true}
	small.CPU, small.Memory, small.RootDiskSize = 2, 2048, 40
	large := spc.Pool{PK: 2, InstanceID: "spc1-pool-2", Size: "8gb", Autoscaled: true, MinCount: 1, MaxCount: 5}
	s.spc.SetPools(small, large, spc.Pool{PK: 3, InstanceID: "spc1-pool-3"})
	stop := s.lead(t)
	s.waitForGroup(t, small.Group(), "40Gi", 0)
	s.waitForGroup(t, large.Group(), "", 5)

	s.spc.SetNodes(spc.Record{
		PK: 7, InstanceID: "spc1-worker-7", GroupName: large.Group(), Size: "8gb", State: "running", PrivateIP: "10.0.0.7",
	})
	_, _, err := s.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-7", InternalIP: "10.0.0.7", Ready: true})
	require.NoError(t, err)
	nodes := s.Client().CoreV1().Nodes()
	node, err := nodes.Get(t.Context(), "worker-7", metav1.GetOptions{})
	require.NoError(t, err)
	node.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceEphemeralStorage: resource.MustParse("70Gi"),
	}
	node.Status.Capacity = node.Status.Allocatable
	_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	filled := s.waitForGroup(t, large.Group(), "70Gi", 5)

	s.requireLargeTemplate(t, &small, large)
	s.spc.SetNodes()
	require.NoError(t, nodes.Delete(t.Context(), "worker-7", metav1.DeleteOptions{}))
	s.waitForRefreshes(t, 2)
	stop()
	s.lead(t)
	large.MaxCount = 8
	s.spc.SetPools(large)
	require.Equal(t, filled.Template, s.waitForGroup(t, large.Group(), "70Gi", 8).Template)
	require.NotContains(t, s.groups(t), small.Group())

	bytes, err := filled.Template.Marshal()
	require.NoError(t, err)
	var received corev1.Node
	require.NoError(t, received.Unmarshal(bytes))
	require.Equal(t, filled.Template.Labels, received.Labels)
	require.Zero(t, filled.Template.Status.Capacity.Cpu().Cmp(*received.Status.Capacity.Cpu()))

	before := s.groups(t)
	s.spc.Fail(spcserver.Failures()["500"])
	require.Eventually(t, func() bool { return s.status(t)["problem"] != "" }, soon, 5*time.Millisecond)
	require.Equal(t, before, s.groups(t))
}

// requireLargeTemplate lets the kubelet of the only Node of a group set as many labels as fit. The
// group then has no template, and the other one is published all the same.
func (s *fixture) requireLargeTemplate(t *testing.T, small *spc.Pool, large spc.Pool) {
	t.Helper()
	label := func(value any) {
		labels := map[string]any{}
		for i := range 14500 {
			labels[fmt.Sprintf("x/%06d", i)] = value
		}
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
		require.NoError(t, err)
		_, err = s.Client().CoreV1().Nodes().Patch(t.Context(), "worker-7", types.MergePatchType, body, metav1.PatchOptions{})
		require.NoError(t, err)
	}
	label(strings.Repeat("v", 63))
	small.MaxCount = 2
	s.spc.SetPools(*small, large)
	s.waitForGroup(t, small.Group(), "40Gi", small.MaxCount)
	require.Contains(t, s.waitForGroup(t, large.Group(), "", large.MaxCount).Debug, "no template: it has 1")
	label(nil)
	s.waitForGroup(t, large.Group(), "70Gi", large.MaxCount)
}

// lead runs a publisher until the test ends or the returned function is called.
func (s *fixture) lead(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
	var group errgroup.Group
	publisher := s.publisher(t)
	group.Go(func() error { return publisher.Run(ctx) })
	stopped := errors.New("another replica leads")
	stop = func() {
		cancel(stopped)
		require.ErrorIs(t, group.Wait(), stopped)
	}
	t.Cleanup(stop)
	return stop
}

// groups returns the data of the ConfigMap with the groups.
func (s *fixture) groups(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.Client().CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + inventory + spcapi.GroupsSuffix,
	})
	require.NoError(t, err)
	if len(list.Items) == 0 {
		return nil
	}
	return list.Items[0].Data
}

// waitForGroup waits until the group has this maximum, and a template with this disk. "" stands for
// no template.
func (s *fixture) waitForGroup(t *testing.T, id, disk string, maximum int) spc.NodeGroup {
	t.Helper()
	var g spc.NodeGroup
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		g = spc.NodeGroup{}
		require.NoError(c, json.Unmarshal([]byte(s.groups(t)[id]), &g))
		require.Equal(c, maximum, *g.MaxSize)
		if disk == "" {
			require.Nil(c, g.Template)
			return
		}
		require.NotNil(c, g.Template)
		require.Equal(c, disk, g.Template.Status.Capacity.StorageEphemeral().String())
	}, soon, 5*time.Millisecond)
	return g
}
