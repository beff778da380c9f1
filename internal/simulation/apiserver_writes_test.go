package simulation

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// patchNode patches the metadata of a Node.
func (s *simulatedAPIServer) patchNode(name string, kind types.PatchType, body []byte) (*corev1.Node, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	made, err := patchViewOf(n).apply(kind, body, nodeResource())
	if err != nil {
		return nil, err
	}
	return s.editNode(name, func(n *corev1.Node) {
		n.Labels, n.Annotations = made.Metadata.Labels, made.Metadata.Annotations
	})
}

// editNode changes a Node as any client may do.
func (s *simulatedAPIServer) editNode(name string, edit func(*corev1.Node)) (*corev1.Node, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	next := n.DeepCopy()
	edit(next)
	switch {
	case equality.Semantic.DeepEqual(n, next):
		return n, nil
	case next.DeletionTimestamp != nil && len(next.Finalizers) == 0:
		s.nodes.remove(n)
		return n, nil
	}
	s.setNextVersion(next)
	s.nodes.put(next)
	return next, nil
}

// deleteNode deletes a Node, or sets its deletion timestamp if it has finalizers.
func (s *simulatedAPIServer) deleteNode(name string) error {
	_, err := s.editNode(name, func(n *corev1.Node) {
		if n.DeletionTimestamp == nil {
			now := metav1.NewTime(time.Now().Truncate(time.Second))
			n.DeletionTimestamp = &now
		}
	})
	return err
}

// applySummary is the leader's server-side apply. The leader owns the numbers and
// conditions, so those that it no longer sets are removed. The agents own the observations.
func (s *simulatedAPIServer) applySummary(
	name string, status v1alpha1.EtcdClusterStatus,
) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	next := *c
	status.Observations = c.Status.Observations
	next.Status = status
	return s.writeCluster(c, &next), nil
}

// applyObservation is an agent's server-side apply of the entry for its own node. A nil
// observation removes the entry.
func (s *simulatedAPIServer) applyObservation(name, node string, o *v1alpha1.Observation) error {
	c, err := s.cluster(name)
	if err != nil {
		return err
	}
	next := *c
	next.Status.Observations = nil
	placed := o == nil
	for _, have := range c.Status.Observations {
		switch {
		case have.Node != node:
			next.Status.Observations = append(next.Status.Observations, have)
		case o != nil:
			next.Status.Observations, placed = append(next.Status.Observations, *o), true
		}
	}
	if !placed {
		next.Status.Observations = append(next.Status.Observations, *o)
	}
	if o == nil && len(c.Status.Observations) > 0 && equality.Semantic.DeepEqual(next.Status,
		v1alpha1.EtcdClusterStatus{}) {
		// An apply that removes the last field of the status leaves null, which the schema
		// forbids.
		return apierrors.NewInvalid(v1alpha1.GroupVersion().WithKind("EtcdCluster").GroupKind(), name, nil)
	}
	s.writeCluster(c, &next)
	return nil
}

func (s *simulatedAPIServer) deleteCluster(name string) error {
	c, err := s.cluster(name)
	if err == nil {
		s.clusters.remove(c)
	}
	return err
}

// An apiBackup is the content of the API server's own etcd at one moment.
type apiBackup struct {
	revision int64
	clusters map[string]*v1alpha1.EtcdCluster
	nodes    map[string]*corev1.Node
	pods     map[string]*corev1.Pod
}

func (s *simulatedAPIServer) takeBackup() apiBackup {
	return apiBackup{
		revision: s.revision, clusters: maps.Clone(s.clusters.objects), nodes: maps.Clone(s.nodes.objects),
		pods: maps.Clone(s.pods),
	}
}

// restore returns to the backup, including its revision. All watches list again and receive
// the differences.
func (s *simulatedAPIServer) restore(from apiBackup) {
	s.revision = from.revision
	replaceObjects(&s.clusters, from.clusters)
	replaceObjects(&s.nodes, from.nodes)
	s.pods = maps.Clone(from.pods)
}

func replaceObjects[T client.Object](t *objectTable[T], objects map[string]T) {
	for _, name := range sortedKeys(t.objects) {
		if _, there := objects[name]; !there {
			t.remove(t.objects[name])
		}
	}
	for _, name := range sortedKeys(objects) {
		now, there := t.objects[name]
		if !there || now.GetResourceVersion() != objects[name].GetResourceVersion() ||
			now.GetUID() != objects[name].GetUID() {
			t.put(objects[name])
		}
	}
}

// forgetSpec removes the recorded bindings and tombstones of a cluster.
func (s *simulatedAPIServer) forgetSpec(id v1alpha1.ClusterID) {
	for _, clusters := range s.tombstones {
		delete(clusters, id)
	}
	for _, refs := range s.bindings {
		maps.DeleteFunc(refs, func(r evidence.MemberRef, _ bool) bool { return r.Cluster == id })
	}
}
