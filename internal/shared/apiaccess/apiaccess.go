// Package apiaccess connects the programs of Holdfast to the API server. It has a client
// configuration, small clients for core/v1 and for the objects of Holdfast, and what several
// programs need to know about objects.
package apiaccess

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Options describes a client of the API server.
type Options struct {
	// Kubeconfig is a file. If it is empty, the program runs in a pod and uses its
	// service account.
	Kubeconfig string
	// UserAgent appears in the audit log of the API server.
	UserAgent string
	// QPS and Burst limit the requests per second on the client's side.
	QPS   float32
	Burst int
}

// Config returns the configuration of a client. Outside a pod and without a kubeconfig,
// the error wraps rest.ErrNotInCluster.
func Config(o Options) (*rest.Config, error) {
	config, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of the API server: %w", err)
	}
	config.UserAgent, config.QPS, config.Burst = o.UserAgent, o.QPS, o.Burst
	return config, nil
}

func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}

// A group is a client for one group of the API. It registers this group only. client-go's typed
// client imports kubernetes/scheme, which registers every type of Kubernetes; that is a third of
// the agent's binary, and the agent runs on every node.
type group struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// newGroup returns a client that uses an existing HTTP client. accepts are the content types of
// answers.
func newGroup(
	config *rest.Config, client *http.Client, version schema.GroupVersion, path, accepts string,
	register func(*runtime.Scheme) error,
) (*group, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("registering %s: %w", version, err)
	}
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath = &version, path
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, accepts
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	restClient, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", version, err)
	}
	return &group{rest: restClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// Core is a client for core/v1.
type Core struct{ group *group }

// NewCore returns a client that uses an existing HTTP client.
func NewCore(config *rest.Config, client *http.Client) (*Core, error) {
	const accepts = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	core, err := newGroup(config, client, corev1.SchemeGroupVersion, "/api", accepts, corev1.AddToScheme)
	return &Core{core}, err
}

// Clusters are the clients for the objects of Holdfast.
type Clusters struct {
	EtcdClusters *EtcdClusters
	Observations *Observations
}

// NewClusters returns clients that use an existing HTTP client.
func NewClusters(config *rest.Config, client *http.Client) (*Clusters, error) {
	own, err := newGroup(
		config, client, v1alpha1.GroupVersion(), "/apis", runtime.ContentTypeJSON, v1alpha1.AddToScheme)
	return &Clusters{
		EtcdClusters: &EtcdClusters{own, v1alpha1.Resource, ""},
		Observations: &Observations{own, v1alpha1.ObservationResource, ""},
	}, err
}

type (
	// Nodes is a client for Nodes.
	Nodes = Client[*corev1.Node, *corev1.NodeList]
	// ConfigMaps is a client for ConfigMaps.
	ConfigMaps = Client[*corev1.ConfigMap, *corev1.ConfigMapList]
	// Events is a client for Events.
	Events = Client[*corev1.Event, *corev1.EventList]
	// EtcdClusters is a client for EtcdClusters, without their observations.
	EtcdClusters = Client[*v1alpha1.EtcdCluster, *v1alpha1.EtcdClusterList]
	// Observations is a client for EtcdObservations.
	Observations = Client[*v1alpha1.EtcdObservation, *v1alpha1.EtcdObservationList]
)

// Nodes returns a client for Nodes.
func (c *Core) Nodes() *Nodes { return &Nodes{c.group, "nodes", ""} }

// ConfigMaps returns a client for the ConfigMaps of one namespace.
func (c *Core) ConfigMaps(namespace string) *ConfigMaps {
	return &ConfigMaps{c.group, "configmaps", namespace}
}

// Events returns a client for the Events of one namespace.
func (c *Core) Events(namespace string) *Events { return &Events{c.group, "events", namespace} }

// A Client reads and writes the objects of one resource. It has the methods of
// client-go's gentype.ClientWithList that Holdfast needs. Package gentype itself contains
// fakes, which import client-go/testing and 36 more packages; they make the agent's
// binary 3% larger.
//
// The errors are those of k8s.io/apimachinery/pkg/api/errors.
type Client[T object, L runtime.Object] struct {
	group               *group
	resource, namespace string // namespace is empty for cluster-scoped resources
}

type object interface {
	runtime.Object
	metav1.Object
}

// newOf returns a new value of the type to which the type T points.
func newOf[T runtime.Object]() T { return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T) }

// request completes a request for the resource.
func (c *Client[T, L]) request(r *rest.Request, options runtime.Object) *rest.Request {
	return r.NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.resource).
		VersionedParams(options, c.group.parameters)
}

// Get reads one object.
func (c *Client[T, L]) Get(ctx context.Context, name string, o metav1.GetOptions) (T, error) {
	result := newOf[T]()
	return result, c.request(c.group.rest.Get(), &o).Name(name).Do(ctx).Into(result)
}

// List lists objects.
func (c *Client[T, L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	list := newOf[L]()
	return list, c.request(c.group.rest.Get(), &o).Do(ctx).Into(list)
}

// Watch watches objects.
func (c *Client[T, L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.request(c.group.rest.Get(), &o).Watch(ctx)
}

// Create creates an object.
func (c *Client[T, L]) Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error) {
	result := newOf[T]()
	return result, c.request(c.group.rest.Post(), &o).Body(object).Do(ctx).Into(result)
}

// Update replaces an object.
func (c *Client[T, L]) Update(ctx context.Context, object T, o metav1.UpdateOptions) (T, error) {
	result := newOf[T]()
	return result, c.request(c.group.rest.Put(), &o).Name(object.GetName()).Body(object).Do(ctx).Into(result)
}

// Patch patches an object, or one of its subresources.
func (c *Client[T, L]) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (T, error) {
	result := newOf[T]()
	err := c.request(c.group.rest.Patch(kind), &o).Name(name).SubResource(subresources...).Body(body).Do(ctx).Into(result)
	return result, err
}
