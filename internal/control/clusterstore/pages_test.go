package clusterstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
)

// A nodesAPI serves Nodes. As an API server without WatchList, it refuses to stream a list in a
// watch; and as every API server with a watch cache, it ignores the limit if any version may be
// answered.
type nodesAPI struct {
	url   string
	count int

	mu    sync.Mutex // guards the fields below
	lists []url.Values
	// endWatch ends the watch with an error that makes client-go list again.
	endWatch chan struct{}
}

func newNodesAPI(t *testing.T, count int) *nodesAPI {
	t.Helper()
	a := &nodesAPI{count: count, endWatch: make(chan struct{})}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *nodesAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch q := r.URL.Query(); {
	case q.Has("sendInitialEvents"):
		refused := apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil).Status()
		w.WriteHeader(int(refused.Code))
		_ = json.NewEncoder(w).Encode(refused)
	case q.Has("watch"):
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-a.watchOf(r):
			expired := apierrors.NewResourceExpired("too old resource version").Status()
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": expired})
		}
	case strings.HasPrefix(r.URL.Path, "/apis/"):
		_ = json.NewEncoder(w).Encode(v1alpha1.EtcdClusterList{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdClusterList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		})
	default:
		a.mu.Lock()
		a.lists = append(a.lists, q)
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(a.page(q))
	}
}

func (a *nodesAPI) page(q url.Values) *corev1.NodeList {
	first, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 || q.Get("resourceVersion") != "" {
		limit = a.count
	}
	list := &corev1.NodeList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
	}
	for i := first; i < min(first+limit, a.count); i++ {
		n := withUnread(fullNode())
		n.Name = fmt.Sprint("n", i)
		list.Items = append(list.Items, *n)
	}
	if first+limit < a.count {
		list.Continue = strconv.Itoa(first + limit)
	}
	return list
}

// takeLists returns the lists that were requested since the last call.
func (a *nodesAPI) takeLists() []url.Values {
	a.mu.Lock()
	defer a.mu.Unlock()
	lists := a.lists
	a.lists = nil
	return lists
}

// requirePaged checks the requests of one list of 240 Nodes.
func requirePaged(t *testing.T, requests []url.Values) {
	t.Helper()
	require.Len(t, requests, 3)
	for i, q := range requests {
		require.Equal(t, "100", q.Get("limit"))
		require.False(t, q.Has("resourceVersion"))
		require.Equal(t, i > 0, q.Has("continue"))
	}
}

// watchOf returns the channel that ends this watch.
func (a *nodesAPI) watchOf(r *http.Request) <-chan struct{} {
	if strings.HasSuffix(r.URL.Path, "/nodes") {
		return a.endWatch
	}
	return nil
}

// newStore returns a Store on this API server, and its cache, which has not started.
func (a *nodesAPI) newStore(
	t *testing.T, trimmer clusterstore.Trimmer,
) (*clusterstore.Store, cache.Cache) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion, v1alpha1.GroupVersion()})
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion().WithKind("EtcdCluster"), meta.RESTScopeRoot)
	mapper.Add(v1alpha1.GroupVersion().WithKind("EtcdObservation"), meta.RESTScopeRoot)
	config := &rest.Config{Host: a.url, QPS: -1}
	config.AcceptContentTypes = runtime.ContentTypeJSON
	o := trimmer.CacheOptions()
	o.Scheme, o.Mapper = scheme, mapper
	c, err := cache.New(config, o)
	require.NoError(t, err)
	reader, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	require.NoError(t, err)
	s, err := clusterstore.New(t.Context(), clusterstore.Options{
		Client: reader, Reader: reader, Cache: c, Trimmer: trimmer, Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	return s, c
}

// TestPagedCache: without WatchList, the cache reads the Nodes in pages, at the start and when it
// has to list again.
func TestPagedCache(t *testing.T) {
	api := newNodesAPI(t, 240)
	s, c := api.newStore(t, clusterstore.Trimmer{})
	ctx, cancel := context.WithCancel(t.Context())
	var running errgroup.Group
	running.Go(func() error { return c.Start(ctx) })
	defer func() {
		cancel()
		require.NoError(t, running.Wait())
	}()
	require.True(t, c.WaitForCacheSync(ctx))
	cached, err := s.CachedNodes(ctx)
	require.NoError(t, err)
	require.Len(t, cached, api.count)
	for _, n := range cached {
		want := ordinaryNode()
		want.Name = n.Name
		require.Equal(t, want, n)
	}
	requirePaged(t, api.takeLists())

	api.endWatch <- struct{}{}
	var again []url.Values
	require.Eventually(t, func() bool {
		again = append(again, api.takeLists()...)
		return len(again) >= 3
	}, 30*time.Second, 20*time.Millisecond)
	requirePaged(t, again)
}

// TestLiveNodes: a live list is read in pages and trimmed, too.
func TestLiveNodes(t *testing.T) {
	api := newNodesAPI(t, 240)
	s, _ := api.newStore(t, clusterstore.Trimmer{})
	all, err := s.LiveNodes(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, all, api.count)
	requirePaged(t, api.takeLists())

	one, err := s.LiveNodes(t.Context(), func(n *corev1.Node) bool { return n.Name == "n177" && len(n.Status.Images) > 0 })
	require.NoError(t, err)
	want := ordinaryNode()
	want.Name = "n177"
	require.Equal(t, []*corev1.Node{want}, one)
	requirePaged(t, api.takeLists())

	s, _ = api.newStore(t, clusterstore.Trimmer{KeepMetadata: true})
	one, err = s.LiveNodes(t.Context(), func(n *corev1.Node) bool { return n.Name == "n177" })
	require.NoError(t, err)
	require.NotEmpty(t, one[0].Labels, "it may take the place of the cache")
}
