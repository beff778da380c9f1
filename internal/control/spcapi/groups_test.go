package spcapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
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
	stop := s.lead(t, s.publisher(t))
	s.requireGroup(t, small.Group(), "40Gi", 0)
	s.requireGroup(t, large.Group(), "", 5)

	s.spc.SetNodes(spc.Record{
		PK: 7, InstanceID: "spc1-worker-7", GroupName: large.Group(), Size: "8gb", State: "running", PrivateIP: "10.0.0.7",
	})
	nodes := s.api.CoreV1().Nodes()
	node := s.addNode(t, "worker-7", "10.0.0.7")
	update := func(change func()) {
		change()
		_, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{})
		require.NoError(t, err)
		s.waitForRefresh(t)
	}
	update(func() {
		node.Status.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceEphemeralStorage: resource.MustParse("70Gi"),
		}
		node.Status.Capacity = node.Status.Allocatable
	})
	filled := s.requireGroup(t, large.Group(), "70Gi", 5)

	// The kubelet of the only Node of a group sets many labels. The group then has no template, and
	// the other one is published all the same.
	small.MaxCount = 2
	s.spc.SetPools(small, large)
	update(func() {
		for i := range 600 {
			node.Labels[fmt.Sprintf("x/%06d", i)] = strings.Repeat("v", 63)
		}
	})
	s.requireGroup(t, small.Group(), "40Gi", 2)
	require.Contains(t, s.requireGroup(t, large.Group(), "", 5).Debug, "no template: it has 4")
	update(func() { clear(node.Labels) })
	s.requireGroup(t, large.Group(), "70Gi", 5)

	s.spc.SetNodes()
	require.NoError(t, nodes.Delete(t.Context(), "worker-7", metav1.DeleteOptions{}))
	s.waitForRefresh(t)
	stop()
	large.MaxCount = 8
	s.spc.SetPools(large)
	stop = s.lead(t, s.publisher(t))
	s.waitForRefresh(t)
	require.Equal(t, filled.Template, s.requireGroup(t, large.Group(), "70Gi", 8).Template)
	before := s.data(t, spcapi.GroupsSuffix)
	require.NotContains(t, before, small.Group())

	text, err := filled.Template.Marshal()
	require.NoError(t, err)
	var received corev1.Node
	require.NoError(t, received.Unmarshal(text))
	require.Equal(t, filled.Template.Labels, received.Labels)
	require.Zero(t, filled.Template.Status.Capacity.Cpu().Cmp(*received.Status.Capacity.Cpu()))

	stop()
	s.failAt("/nodepools", spcserver.Failures()["500"])
	stop = s.lead(t, s.publisher(t)) // It has never known the pools.
	s.waitForRefresh(t)
	require.Contains(t, s.status(t)["problem"], "responded with 500")
	require.Equal(t, before, s.data(t, spcapi.GroupsSuffix))
	s.failAt("/none", nil)
	s.waitForRefresh(t)
	s.failAt("/nodepools", spcserver.Failures()["404"]) // That of the API of 2016, which has no pools.
	s.waitForRefresh(t)
	require.Equal(t, before, s.data(t, spcapi.GroupsSuffix))
	require.Contains(t, s.status(t)["problem"], "404")

	stop()
	s.failAt("/23391", spcserver.Failures()["500"])
	large.MaxCount = 9
	s.spc.SetPools(large)
	s.lead(t, s.publisher(t))
	s.waitForRefresh(t)
	require.Contains(t, s.status(t)["problem"], "responded with 500")
	s.requireGroup(t, large.Group(), "70Gi", 9)
}

// requireGroup checks that the group has this maximum, and a template with this disk. "" stands for
// no template.
func (s *fixture) requireGroup(t *testing.T, id, disk string, maximum int) (g spc.NodeGroup) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(s.data(t, spcapi.GroupsSuffix)[id]), &g))
	require.Equal(t, maximum, *g.MaxSize)
	if disk == "" {
		require.Nil(t, g.Template)
		return g
	}
	require.NotNil(t, g.Template)
	require.Equal(t, disk, g.Template.Status.Capacity.StorageEphemeral().String())
	return g
}
