package machinehook

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// TestMachinesInPages: without WatchList, the follower lists the Machines in pages, and so does
// Ending in any case. Both find the last one.
func TestMachinesInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newStaleFixture(t, staleMachine("1", hooked), staleMachine("1", hooked))
		api := &pagedMachines{Interface: f.client}
		f.Client, f.machines.Client = api, api
		f.Node = func(context.Context, string) (*corev1.Node, error) {
			return &corev1.Node{Spec: corev1.NodeSpec{ProviderID: "cloud:///n239"}}, nil
		}
		require.Equal(t, "Machine default/m239 of node n239 is being deleted",
			f.Ending(t.Context(), v1alpha1.Grant{Node: "n239"}))
		api.requirePaged(t)

		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { require.NoError(t, f.machines.follow(ctx)) })
		defer following.Wait()
		defer cancel()
		<-time.After(time.Second)
		found, isKnown := f.machines.list()
		require.True(t, isKnown)
		require.Len(t, found, pagedCount)
		api.requirePaged(t)
	})
}

const pagedCount = 240

// pagedMachines lists Machines that are being deleted as the API server does. It does not stream a
// list in a watch.
type pagedMachines struct {
	dynamic.Interface
	requests []metav1.ListOptions
}

func (p *pagedMachines) IsWatchListSemanticsUnSupported() bool { return true }

func (p *pagedMachines) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return pagedResource{p.Interface.Resource(r), p}
}

type pagedResource struct {
	dynamic.NamespaceableResourceInterface
	api *pagedMachines
}

func (r pagedResource) List(_ context.Context, o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	r.api.requests = append(r.api.requests, o)
	first, _ := strconv.Atoi(o.Continue)
	end := pagedCount
	if o.Limit > 0 && o.ResourceVersion == "" {
		end = min(end, first+int(o.Limit))
	}
	page := &unstructured.UnstructuredList{}
	page.SetResourceVersion("7")
	for i := first; i < end; i++ {
		page.Items = append(page.Items, *staleMachine("1", func(m *unstructured.Unstructured) {
			m.SetName(fmt.Sprint("m", i))
			m.Object["spec"] = map[string]any{"providerID": fmt.Sprint("cloud:///n", i)}
			deleting(m)
		}))
	}
	if end < pagedCount {
		page.SetContinue(strconv.Itoa(end))
	}
	return page, nil
}

// requirePaged checks the requests of one list, and forgets them.
func (p *pagedMachines) requirePaged(t *testing.T) {
	t.Helper()
	require.Len(t, p.requests, 3)
	for _, o := range p.requests {
		require.EqualValues(t, 100, o.Limit)
		require.Empty(t, o.ResourceVersion)
	}
	p.requests = nil
}
