package simulation

import (
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// patchNode patches the metadata of a Node.
func (s *simulatedAPIServer) patchNode(name string, kind types.PatchType, body []byte) (*corev1.Node, error) {
	n, err := s.node(name)
	if err != nil {
		return nil, err
	}
	made, err := patchViewOf(n).apply(kind, body, s.nodes.resource)
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
// conditions, so those that it no longer sets are removed.
func (s *simulatedAPIServer) applySummary(
	name string, status v1alpha1.EtcdClusterStatus,
) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	next := *c
	next.Status = status
	return s.writeCluster(c, &next), nil
}

// deleteObservation deletes an EtcdObservation on condition that it has the UID.
func (s *simulatedAPIServer) deleteObservation(name string, uid types.UID) error {
	o, err := s.observations.get(name)
	if err != nil {
		return err
	}
	if o.UID != uid {
		return apierrors.NewConflict(s.observations.resource, name, errors.New("the UID in the precondition differs"))
	}
	s.observations.remove(o)
	return nil
}

// publish is an agent's update of its observation. The agents send the version that they update.
// Here a late write also replaces a newer one, which is worse. cluster is the UID of the
// EtcdCluster that the agent knows.
func (s *simulatedAPIServer) publish(id v1alpha1.ClusterID, cluster types.UID, report v1alpha1.Observation) error {
	o, err := s.observations.get(v1alpha1.ObservationName(id, report.Node))
	if err != nil {
		return err
	}
	if !observation.BelongsTo(o, cluster) {
		return errors.New("the EtcdObservation belongs to another EtcdCluster")
	}
	next := *o
	next.Observation = report
	if !equality.Semantic.DeepEqual(o, &next) {
		s.setNextVersion(&next)
		s.observations.put(&next)
	}
	return nil
}

// joined returns the EtcdCluster with its observations, or nil.
func (s *simulatedAPIServer) joined(name string) *v1alpha1.EtcdCluster {
	c := s.clusters.objects[name]
	if c == nil {
		return nil
	}
	var all []*v1alpha1.EtcdObservation
	for _, name := range sortedKeys(s.observations.objects) {
		all = append(all, s.observations.objects[name])
	}
	return observation.Join(c, all)
}

// deleteCluster deletes an EtcdCluster. Its observations stay until the leader or the garbage
// collector finds them.
func (s *simulatedAPIServer) deleteCluster(name string) error {
	c, err := s.cluster(name)
	if err == nil {
		s.clusters.remove(c)
	}
	return err
}

// An apiBackup is the content of the API server's own etcd at one moment.
type apiBackup struct {
	revision     int64
	clusters     map[string]*v1alpha1.EtcdCluster
	observations map[string]*v1alpha1.EtcdObservation
	nodes        map[string]*corev1.Node
	pods         map[string]*corev1.Pod
}

func (s *simulatedAPIServer) takeBackup() apiBackup {
	return apiBackup{
		revision: s.revision, clusters: maps.Clone(s.clusters.objects), nodes: maps.Clone(s.nodes.objects),
		observations: maps.Clone(s.observations.objects), pods: maps.Clone(s.pods),
	}
}

// restore returns to the backup, including its revision. All watches list again and receive
// the differences.
func (s *simulatedAPIServer) restore(from apiBackup) {
	s.revision = from.revision
	replaceObjects(&s.clusters, from.clusters)
	replaceObjects(&s.observations, from.observations)
	replaceObjects(&s.nodes, from.nodes)
	s.pods = maps.Clone(from.pods)
}

func replaceObjects[T storedObject[T]](t *objectTable[T], objects map[string]T) {
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
