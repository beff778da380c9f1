package simulation

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
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// An objectVersion is one version of an object, as caches keep it. Stored objects are never
// modified.
type objectVersion[T client.Object] struct {
	name    string
	object  T
	deleted bool
}

// A storedObject is an object of one kind.
type storedObject[T any] interface {
	client.Object
	DeepCopyInto(T)
}

// An objectTable holds the objects of one kind, and all their versions, from which each
// cache reads at its own pace.
type objectTable[T storedObject[T]] struct {
	resource schema.GroupResource
	objects  map[string]T
	// trim returns what caches keep of an object. kept has that of all objects.
	trim func(T) T
	kept map[string]T
	log  []objectVersion[T]
}

func newTable[T storedObject[T]](group, resource string, trim func(T) T) objectTable[T] {
	return objectTable[T]{
		resource: schema.GroupResource{Group: group, Resource: resource}, trim: trim,
		objects: map[string]T{}, kept: map[string]T{},
	}
}

func keepAll[T any](o T) T { return o }

func (t *objectTable[T]) get(name string) (object T, err error) {
	object, exists := t.objects[name]
	if !exists {
		err = apierrors.NewNotFound(t.resource, name)
	}
	return object, err
}

// create stores a copy of a new object.
func (t *objectTable[T]) create(s *simulatedAPIServer, o T) (made T, err error) {
	if _, exists := t.objects[o.GetName()]; exists {
		return made, apierrors.NewAlreadyExists(t.resource, o.GetName())
	}
	made, _ = o.DeepCopyObject().(T)
	s.createdCount++
	made.SetUID(types.UID(fmt.Sprintf("u%d", s.createdCount)))
	made.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	s.setNextVersion(made)
	t.put(made)
	return made, nil
}

func (t *objectTable[T]) put(o T) {
	name := o.GetName()
	t.objects[name], t.kept[name] = o, t.trim(o)
	t.log = append(t.log, objectVersion[T]{name: name, object: t.kept[name]})
}

func (t *objectTable[T]) remove(o T) {
	name := o.GetName()
	t.log = append(t.log, objectVersion[T]{name: name, object: t.kept[name], deleted: true})
	delete(t.objects, name)
	delete(t.kept, name)
}

// A simulatedAPIServer is the part of the API server that the webhook and the agents use.
// Only the driver calls it.
type simulatedAPIServer struct {
	revision     int64
	createdCount int
	clusters     objectTable[*v1alpha1.EtcdCluster]
	observations objectTable[*v1alpha1.EtcdObservation]
	nodes        objectTable[*corev1.Node]
	// pods are the guard pods. All parties read them live.
	pods map[string]*corev1.Pod
	// bindings has all bindings that ever existed, by Node UID. The webhook removes a binding
	// when its member has left etcd, and the simulation has the true member lists.
	bindings map[types.UID]map[evidence.MemberRef]bool
	// tombstones has the clusters that ever had a tombstone for a Node, by Node UID.
	tombstones map[types.UID]map[v1alpha1.ClusterID]bool
}

func newSimulatedAPIServer() *simulatedAPIServer {
	return &simulatedAPIServer{
		clusters:     newTable(v1alpha1.Group, v1alpha1.Resource, keepAll[*v1alpha1.EtcdCluster]),
		observations: newTable(v1alpha1.Group, v1alpha1.ObservationResource, keepAll[*v1alpha1.EtcdObservation]),
		nodes:        newTable("", "nodes", trimNode),
		pods:         map[string]*corev1.Pod{},
		bindings:     map[types.UID]map[evidence.MemberRef]bool{}, tombstones: map[types.UID]map[v1alpha1.ClusterID]bool{},
	}
}

func (s *simulatedAPIServer) setNextVersion(o client.Object) {
	s.revision++
	o.SetResourceVersion(strconv.FormatInt(s.revision, 10))
}

func (s *simulatedAPIServer) cluster(name string) (*v1alpha1.EtcdCluster, error) {
	return s.clusters.get(name)
}

func (s *simulatedAPIServer) node(name string) (*corev1.Node, error) { return s.nodes.get(name) }

func (s *simulatedAPIServer) createNode(n *corev1.Node) (*corev1.Node, error) {
	return s.nodes.create(s, n)
}

func (s *simulatedAPIServer) createCluster(c *v1alpha1.EtcdCluster) (*v1alpha1.EtcdCluster, error) {
	c = c.DeepCopy()
	c.Status, c.Observations = v1alpha1.EtcdClusterStatus{}, nil // Only the subresource writes these.
	made, err := s.clusters.create(s, c)
	if err == nil {
		s.recordSpec(made)
	}
	return made, err
}

// A patchView is the part of an object that Holdfast's patches read or write, in its JSON
// form.
type patchView struct {
	Metadata struct {
		Name        string            `json:"name"`
		UID         types.UID         `json:"uid"`
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec *v1alpha1.EtcdClusterSpec `json:"spec,omitempty"`
}

func patchViewOf(o client.Object) patchView {
	var f patchView
	f.Metadata.Name, f.Metadata.UID = o.GetName(), o.GetUID()
	f.Metadata.Labels, f.Metadata.Annotations = o.GetLabels(), o.GetAnnotations()
	return f
}

// apply applies a JSON patch or a merge patch. Like the API server, it answers 422 if a
// test fails, if the patch cannot be applied, or if the UID differs.
func (f patchView) apply(kind types.PatchType, body []byte, resource schema.GroupResource) (patchView, error) {
	before, err := json.Marshal(f)
	if err != nil {
		return patchView{}, err
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
		err = fmt.Errorf("patch type %s is not simulated", kind)
	}
	var made patchView
	if err == nil {
		err = json.Unmarshal(after, &made)
	}
	if err != nil {
		return patchView{}, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "PATCH", resource,
			f.Metadata.Name, err.Error(), 0, false)
	}
	if made.Metadata.UID != f.Metadata.UID {
		uid := field.Invalid(field.NewPath("metadata", "uid"), made.Metadata.UID, "field is immutable")
		return patchView{}, apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: resource.Resource},
			f.Metadata.Name, field.ErrorList{uid})
	}
	return made, nil
}

// patchCluster patches everything except the status.
func (s *simulatedAPIServer) patchCluster(
	name string, kind types.PatchType, body []byte,
) (*v1alpha1.EtcdCluster, error) {
	c, err := s.cluster(name)
	if err != nil {
		return nil, err
	}
	view := patchViewOf(c)
	view.Spec = &c.Spec
	made, err := view.apply(kind, body, s.clusters.resource)
	if err != nil {
		return nil, err
	}
	next := *c
	next.Labels, next.Annotations, next.Spec = made.Metadata.Labels, made.Metadata.Annotations, valueOf(made.Spec)
	return s.writeCluster(c, &next), nil
}

// valueOf returns what the pointer points to, or the zero value.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// writeCluster stores next as the newest version, unless nothing differs.
func (s *simulatedAPIServer) writeCluster(c, next *v1alpha1.EtcdCluster) *v1alpha1.EtcdCluster {
	if equality.Semantic.DeepEqual(c, next) {
		return c
	}
	s.setNextVersion(next)
	s.clusters.put(next)
	s.recordSpec(next)
	return next
}

func (s *simulatedAPIServer) recordSpec(c *v1alpha1.EtcdCluster) {
	for _, b := range c.Spec.Members {
		if s.bindings[b.NodeUID] == nil {
			s.bindings[b.NodeUID] = map[evidence.MemberRef]bool{}
		}
		s.bindings[b.NodeUID][evidence.MemberRef{Cluster: v1alpha1.ClusterID(c.Name), Member: b.MemberID}] = true
	}
	for _, g := range c.Spec.Grants {
		if s.tombstones[g.NodeUID] == nil {
			s.tombstones[g.NodeUID] = map[v1alpha1.ClusterID]bool{}
		}
		if g.Gone != nil {
			s.tombstones[g.NodeUID][v1alpha1.ClusterID(c.Name)] = true
		}
	}
}
