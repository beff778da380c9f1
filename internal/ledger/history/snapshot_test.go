package history

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// snapshot is the API server's own etcd at one moment.
type snapshot struct {
	revision int64
	clusters map[string]*v1alpha1.EtcdCluster
	nodes    map[string]*corev1.Node
}

func (s *server) snapshot() snapshot {
	return snapshot{revision: s.revision, clusters: maps.Clone(s.clusters.objects), nodes: maps.Clone(s.nodes.objects)}
}

// restore goes back to the snapshot, its revision included. Whoever watched lists anew, and so hears of what is different.
func (s *server) restore(from snapshot) {
	s.revision = from.revision
	relist(&s.clusters, from.clusters)
	relist(&s.nodes, from.nodes)
}

func relist[T client.Object](t *table[T], objects map[string]T) {
	for _, name := range sortedKeys(t.objects) {
		if _, there := objects[name]; !there {
			t.drop(t.objects[name])
		}
	}
	for _, name := range sortedKeys(objects) {
		now, there := t.objects[name]
		if !there || now.GetResourceVersion() != objects[name].GetResourceVersion() || now.GetUID() != objects[name].GetUID() {
			t.put(objects[name])
		}
	}
}

// unbind forgets what was bound in a cluster.
func (s *server) unbind(id v1alpha1.ClusterID) {
	for _, refs := range s.bound {
		maps.DeleteFunc(refs, func(r protect.MemberRef, _ bool) bool { return r.Cluster == id })
	}
}
