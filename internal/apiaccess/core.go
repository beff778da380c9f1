package apiaccess

import (
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Core is a client for the group core/v1. client-go's typed client for it knows every type of Kubernetes (it imports
// kubernetes/scheme), which is a third of an agent that runs on every node; this one knows the group alone.
type Core struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewCore returns a client that shares an HTTP client with others.
func NewCore(config *rest.Config, client *http.Client) (*Core, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering core/v1: %w", err)
	}
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath = &corev1.SchemeGroupVersion, "/api"
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	made, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("making a client for core/v1: %w", err)
	}
	return &Core{rest: made, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// Nodes is a client for Nodes.
func (c *Core) Nodes() *Nodes { return &Nodes{c} }

// Nodes reads and patches Nodes. Errors are the API server's (k8s.io/apimachinery/pkg/api/errors).
type Nodes struct{ core *Core }

// Get reads one Node.
func (n *Nodes) Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := n.core.rest.Get().Resource("nodes").Name(name).VersionedParams(&o, n.core.parameters).Do(ctx).Into(node)
	return node, err
}

// List lists Nodes.
func (n *Nodes) List(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	list := &corev1.NodeList{}
	return list, n.core.list(ctx, "", "nodes", o, list)
}

// Watch watches Nodes.
func (n *Nodes) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return n.core.watch(ctx, "", "nodes", o)
}

// Patch patches a Node, or one of its subresources.
func (n *Nodes) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := n.core.rest.Patch(kind).Resource("nodes").Name(name).SubResource(subresources...).
		VersionedParams(&o, n.core.parameters).Body(body).Do(ctx).Into(node)
	return node, err
}

// ConfigMaps is a client for the ConfigMaps of one namespace.
func (c *Core) ConfigMaps(namespace string) *ConfigMaps { return &ConfigMaps{c, namespace} }

// ConfigMaps reads ConfigMaps.
type ConfigMaps struct {
	core      *Core
	namespace string
}

// List lists ConfigMaps.
func (m *ConfigMaps) List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error) {
	list := &corev1.ConfigMapList{}
	return list, m.core.list(ctx, m.namespace, "configmaps", o, list)
}

// Watch watches ConfigMaps.
func (m *ConfigMaps) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return m.core.watch(ctx, m.namespace, "configmaps", o)
}

// Events is a client for the Events of one namespace.
func (c *Core) Events(namespace string) *Events { return &Events{c, namespace} }

// Events posts Events.
type Events struct {
	core      *Core
	namespace string
}

// Create posts an Event.
func (e *Events) Create(ctx context.Context, event *corev1.Event, o metav1.CreateOptions) (*corev1.Event, error) {
	made := &corev1.Event{}
	err := e.core.rest.Post().Namespace(e.namespace).Resource("events").VersionedParams(&o, e.core.parameters).Body(event).Do(ctx).Into(made)
	return made, err
}

func (c *Core) list(ctx context.Context, namespace, resource string, o metav1.ListOptions, into runtime.Object) error {
	return c.rest.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&o, c.parameters).Do(ctx).Into(into)
}

func (c *Core) watch(ctx context.Context, namespace, resource string, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).VersionedParams(&o, c.parameters).Watch(ctx)
}
