package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// Clusters is a client for EtcdClusters: it reads them and writes one node's entry.
type Clusters struct {
	rest rest.Interface
	// parameters encodes options of list, watch and patch.
	parameters runtime.ParameterCodec
}

// NewClusters returns a client that shares the HTTP client of the agent's others.
func NewClusters(config *rest.Config, client *http.Client) (*Clusters, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering %s: %w", v1alpha1.GroupVersion(), err)
	}
	own, version := rest.CopyConfig(config), v1alpha1.GroupVersion()
	own.GroupVersion, own.APIPath = &version, "/apis"
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	made, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", version, err)
	}
	return &Clusters{rest: made, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// List reads EtcdClusters.
func (c *Clusters) List(ctx context.Context, o metav1.ListOptions) (*v1alpha1.EtcdClusterList, error) {
	list := &v1alpha1.EtcdClusterList{}
	err := c.rest.Get().Resource(v1alpha1.Resource).VersionedParams(&o, c.parameters).Do(ctx).Into(list)
	return list, err
}

// Watch watches EtcdClusters.
func (c *Clusters) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return c.rest.Get().Resource(v1alpha1.Resource).VersionedParams(&o, c.parameters).Watch(ctx)
}

// Publish writes the entry of one node in the status of an EtcdCluster, or takes it out if the observation is nil.
// Server-side apply keeps the entries of others: each node's field manager owns its own and no other.
func (c *Clusters) Publish(ctx context.Context, cluster v1alpha1.ClusterID, node string, o *v1alpha1.Observation) error {
	body, err := json.Marshal(entry(cluster, o))
	if err != nil {
		return fmt.Errorf("encoding an observation: %w", err)
	}
	force := true
	err = c.rest.Patch(types.ApplyPatchType).Resource(v1alpha1.Resource).Name(string(cluster)).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: FieldManager(node), Force: &force}, c.parameters).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("publishing to EtcdCluster %s: %w", cluster, err)
	}
	return nil
}

// entry is the apply configuration of one observation: the type itself would claim every field that it always encodes.
func entry(cluster v1alpha1.ClusterID, o *v1alpha1.Observation) map[string]any {
	applied := map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "EtcdCluster",
		"metadata": map[string]any{"name": string(cluster)},
	}
	if o != nil {
		applied["status"] = map[string]any{"observations": []v1alpha1.Observation{*o}}
	}
	return applied
}

// FieldManager is the manager of one node's entry. Names of nodes reach 253 bytes and those of managers 128, hence the
// hash.
func FieldManager(node string) string {
	sum := sha256.Sum256([]byte(node))
	return "holdfast/" + hex.EncodeToString(sum[:8])
}
