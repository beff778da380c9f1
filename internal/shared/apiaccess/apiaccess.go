// Package apiaccess connects the programs of Holdfast to the API server. It has a client
// configuration, a small client for core/v1, and what several programs need to know about objects.
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
	"k8s.io/client-go/tools/clientcmd"
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

// Core is a client for core/v1. It registers this group only. client-go's typed client
// imports kubernetes/scheme, which registers every type of Kubernetes; that is a third of
// the agent's binary, and the agent runs on every node.
type Core struct {
	rest       rest.Interface
	parameters runtime.ParameterCodec
}

// NewCore returns a client that uses an existing HTTP client.
func NewCore(config *rest.Config, client *http.Client) (*Core, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering core/v1: %w", err)
	}
	own := rest.CopyConfig(config)
	own.GroupVersion, own.APIPath = &corev1.SchemeGroupVersion, "/api"
	own.ContentType = runtime.ContentTypeJSON
	own.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	coreClient, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("creating a client for core/v1: %w", err)
	}
	return &Core{rest: coreClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

type (
	// Nodes is a client for Nodes.
	Nodes = Client[corev1.Node, corev1.NodeList, *corev1.Node, *corev1.NodeList]
	// ConfigMaps is a client for ConfigMaps.
	ConfigMaps = Client[corev1.ConfigMap, corev1.ConfigMapList, *corev1.ConfigMap, *corev1.ConfigMapList]
	// Events is a client for Events.
	Events = Client[corev1.Event, corev1.EventList, *corev1.Event, *corev1.EventList]
)

// Nodes returns a client for Nodes.
func (c *Core) Nodes() *Nodes { return &Nodes{c, "nodes", ""} }

// ConfigMaps returns a client for the ConfigMaps of one namespace.
func (c *Core) ConfigMaps(namespace string) *ConfigMaps {
	return &ConfigMaps{c, "configmaps", namespace}
}

// Events returns a client for the Events of one namespace.
func (c *Core) Events(namespace string) *Events { return &Events{c, "events", namespace} }

// An Object is a pointer to an object or a list of the API.
type Object[T any] interface {
	*T
	runtime.Object
}

// A Client reads and writes the objects of one resource. It has the methods of
// client-go's gentype.ClientWithList that Holdfast needs. Package gentype itself contains
// fakes, which import client-go/testing and 36 more packages; they make the agent's
// binary 3% larger.
//
// The errors are those of k8s.io/apimachinery/pkg/api/errors.
type Client[T, L any, P Object[T], PL Object[L]] struct {
	core                *Core
	resource, namespace string // namespace is empty for cluster-scoped resources
}

// request completes a request for the resource.
func (c *Client[T, L, P, PL]) request(r *rest.Request, options runtime.Object) *rest.Request {
	return r.NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.resource).
		VersionedParams(options, c.core.parameters)
}

// Get reads one object.
func (c *Client[T, L, P, PL]) Get(ctx context.Context, name string, o metav1.GetOptions) (P, error) {
	result := P(new(T))
	return result, c.request(c.core.rest.Get(), &o).Name(name).Do(ctx).Into(result)
}

// List lists objects.
func (c *Client[T, L, P, PL]) List(ctx context.Context, o metav1.ListOptions) (PL, error) {
	list := PL(new(L))
	return list, c.request(c.core.rest.Get(), &o).Do(ctx).Into(list)
}

// Watch watches objects.
func (c *Client[T, L, P, PL]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.request(c.core.rest.Get(), &o).Watch(ctx)
}

// Create creates an object.
func (c *Client[T, L, P, PL]) Create(ctx context.Context, object P, o metav1.CreateOptions) (P, error) {
	result := P(new(T))
	return result, c.request(c.core.rest.Post(), &o).Body(object).Do(ctx).Into(result)
}

// Patch patches an object, or one of its subresources.
func (c *Client[T, L, P, PL]) Patch(
	ctx context.Context, name string, kind types.PatchType, body []byte, o metav1.PatchOptions, subresources ...string,
) (P, error) {
	result := P(new(T))
	err := c.request(c.core.rest.Patch(kind), &o).Name(name).SubResource(subresources...).Body(body).Do(ctx).Into(result)
	return result, err
}
