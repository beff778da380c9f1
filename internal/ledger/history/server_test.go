package history

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// version is one version of an object. Objects are never changed once they are here.
type version[T client.Object] struct {
	name   string
	object T
	gone   bool
}

// table holds the objects of one kind and every version that there ever was, for caches to read at their own pace.
type table[T client.Object] struct {
	objects map[string]T
	log     []version[T]
}

func (t *table[T]) put(o T) {
	t.objects[o.GetName()] = o
	t.log = append(t.log, version[T]{name: o.GetName(), object: o})
}

func (t *table[T]) drop(o T) {
	delete(t.objects, o.GetName())
	t.log = append(t.log, version[T]{name: o.GetName(), object: o, gone: true})
}

// server is the API server, as far as the webhook and the agents can tell. The driver alone calls it.
type server struct {
	revision int64
	made     int
	clusters table[*v1alpha1.EtcdCluster]
	nodes    table[*corev1.Node]
	// bound is every binding that there ever was, by Node UID. One that is taken back says that its member has left, which
	// the truth knows better.
	bound map[types.UID]map[protect.MemberRef]bool
}

func newServer() *server {
	return &server{
		clusters: table[*v1alpha1.EtcdCluster]{objects: map[string]*v1alpha1.EtcdCluster{}},
		nodes:    table[*corev1.Node]{objects: map[string]*corev1.Node{}},
		bound:    map[types.UID]map[protect.MemberRef]bool{},
	}
}

func clusterResource() schema.GroupResource {
	return schema.GroupResource{Group: v1alpha1.GroupVersion().Group, Resource: v1alpha1.Resource}
}

func nodeResource() schema.GroupResource { return schema.GroupResource{Resource: "nodes"} }

// stamp makes o the next version.
func (s *server) stamp(o client.Object) {
	s.revision++
	o.SetResourceVersion(strconv.FormatInt(s.revision, 10))
}

func (s *server) bear(o client.Object) {
	s.made++
	o.SetUID(types.UID(fmt.Sprintf("u%d", s.made)))
	o.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
}

func (s *server) cluster(name string) (*v1alpha1.EtcdCluster, error) {
	c := s.clusters.objects[name]
	if c == nil {
		return nil, apierrors.NewNotFound(clusterResource(), name)
	}
	return c, nil
}

func (s *server) node(name string) (*corev1.Node, error) {
	n := s.nodes.objects[name]
	if n == nil {
		return nil, apierrors.NewNotFound(nodeResource(), name)
	}
	return n, nil
}

func (s *server) createCluster(c *v1alpha1.EtcdCluster) (*v1alpha1.EtcdCluster, error) {
	if s.clusters.objects[c.Name] != nil {
		return nil, apierrors.NewAlreadyExists(clusterResource(), c.Name)
	}
	c = c.DeepCopy()
	c.Status = v1alpha1.EtcdClusterStatus{} // the subresource alone writes it
	s.bear(c)
	s.stamp(c)
	s.clusters.put(c)
	s.bind(c)
	return c, nil
}

func (s *server) createNode(n *corev1.Node) (*corev1.Node, error) {
	if s.nodes.objects[n.Name] != nil {
		return nil, apierrors.NewAlreadyExists(nodeResource(), n.Name)
	}
	n = n.DeepCopy()
	s.bear(n)
	s.stamp(n)
	s.nodes.put(n)
	return n, nil
}

// face is the part of an object that a patch of ours reads or writes, as JSON has it. Spec or status is left out.
type face struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec   *v1alpha1.EtcdClusterSpec   `json:"spec,omitempty"`
	Status *v1alpha1.EtcdClusterStatus `json:"status,omitempty"`
}

func faceOf(o client.Object) face {
	var f face
	f.Metadata.Name, f.Metadata.UID = o.GetName(), o.GetUID()
	f.Metadata.Labels, f.Metadata.Annotations = o.GetLabels(), o.GetAnnotations()
	return f
}

// patched applies a JSON patch or a merge patch. A test that fails, a patch that cannot be applied and another UID are all
// 422 to the API server.
func (f face) patched(kind types.PatchType, body []byte, resource schema.GroupResource) (face, error) {
	before, err := json.Marshal(f)
	if err != nil {
		return face{}, err
	}
	var after []byte
	switch kind {
	case types.JSONPatchType:
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(body); err == nil {
			after, err = patch.Apply(before)
		}
	case types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, body)
	default:
		err = fmt.Errorf("patch type %s is not played", kind)
	}
	var made face
	if err == nil {
		err = json.Unmarshal(after, &made)
	}
	if err != nil {
		return face{}, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "PATCH", resource, f.Metadata.Name, err.Error(), 0, false)
	}
	if made.Metadata.UID != f.Metadata.UID {
		uid := field.Invalid(field.NewPath("metadata", "uid"), made.Metadata.UID, "field is immutable")
		return face{}, apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource}, f.Metadata.Name, field.ErrorList{uid})
	}
	return made, nil
}

// patchCluster patches everything but the status.
func (s *server) patchCluster(name string, kind types.PatchType, body []byte) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	f := faceOf(c)
	f.Spec = &c.Spec
	made, err := f.patched(kind, body, clusterResource())
	if err != nil {
		return nil, err
	}
	next := *c
	next.Labels, next.Annotations = made.Metadata.Labels, made.Metadata.Annotations
	if next.Spec = (v1alpha1.EtcdClusterSpec{}); made.Spec != nil {
		next.Spec = *made.Spec
	}
	return s.writeCluster(c, &next), nil
}

// writeCluster makes next the newest version, unless nothing differs.
func (s *server) writeCluster(c, next *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	if equality.Semantic.DeepEqual(c, next) {
		return c
	}
	s.stamp(next)
	s.clusters.put(next)
	s.bind(next)
	return next
}

// bind notes the bindings.
func (s *server) bind(c *v1alpha1.EtcdCluster) {
	for _, b := range c.Spec.Members {
		if s.bound[b.NodeUID] == nil {
			s.bound[b.NodeUID] = map[protect.MemberRef]bool{}
		}
		s.bound[b.NodeUID][protect.MemberRef{Cluster: v1alpha1.ClusterID(c.Name), Member: b.MemberID}] = true
	}
}

func (s *server) patchClusterStatus(name string, kind types.PatchType, body []byte) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	f := faceOf(c)
	f.Status = &c.Status
	made, err := f.patched(kind, body, clusterResource())
	if err != nil {
		return nil, err
	}
	next := *c
	if next.Status = (v1alpha1.EtcdClusterStatus{}); made.Status != nil {
		next.Status = *made.Status
	}
	return s.writeCluster(c, &next), nil
}

// applySummary is the leader's server-side apply: the numbers and conditions are its own, and those that it no longer
// names go. The observations are the agents'.
func (s *server) applySummary(name string, status v1alpha1.EtcdClusterStatus) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	next := *c
	status.Observations = c.Status.Observations
	next.Status = status
	return s.writeCluster(c, &next), nil
}

// applyObservation is an agent's server-side apply: the entry of its own node, which nil takes out.
func (s *server) applyObservation(name, node string, o *v1alpha1.Observation) error {
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
	if o == nil && len(c.Status.Observations) > 0 && equality.Semantic.DeepEqual(next.Status, v1alpha1.EtcdClusterStatus{}) {
		// Who takes out the last thing of the status by apply leaves null, which the schema does not allow.
		return apierrors.NewInvalid(v1alpha1.GroupVersion().WithKind("EtcdCluster").GroupKind(), name, nil)
	}
	s.writeCluster(c, &next)
	return nil
}

func (s *server) deleteCluster(name string) error {
	c, err := s.cluster(name)
	if err == nil {
		s.clusters.drop(c)
	}
	return err
}
