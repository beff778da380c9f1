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

// Clusters is a client for EtcdClusters. It reads them, and writes the entry of one node.
type Clusters struct {
	rest rest.Interface
	// parameters encodes the options of list, watch and patch requests.
	parameters runtime.ParameterCodec
}

// NewClusters returns a client that uses an existing HTTP client.
func NewClusters(config *rest.Config, client *http.Client) (*Clusters, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering %s: %w", v1alpha1.GroupVersion(), err)
	}
	own, version := rest.CopyConfig(config), v1alpha1.GroupVersion()
	own.GroupVersion, own.APIPath = &version, "/apis"
	own.ContentType, own.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	restClient, err := rest.RESTClientForConfigAndClient(own, client)
	if err != nil {
		return nil, fmt.Errorf("creating a client for %s: %w", version, err)
	}
	return &Clusters{rest: restClient, parameters: runtime.NewParameterCodec(scheme)}, nil
}

// List lists EtcdClusters.
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

// Publish writes the entry of one node in the status of an EtcdCluster, or removes the entry if
// the observation is nil. Server-side apply keeps the entries of other nodes, because the field
// manager of each node owns the entry of that node only.
func (c *Clusters) Publish(
	ctx context.Context, cluster v1alpha1.ClusterID, node string, o *v1alpha1.Observation,
) error {
	body, err := json.Marshal(observationPatch(cluster, o))
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

// observationPatch returns the apply configuration of one observation. The type EtcdCluster is
// not used, because it always encodes some fields, and the patch would claim them.
func observationPatch(cluster v1alpha1.ClusterID, o *v1alpha1.Observation) map[string]any {
	patch := map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "EtcdCluster",
		"metadata": map[string]any{"name": string(cluster)},
	}
	if o != nil {
		patch["status"] = map[string]any{"observations": []v1alpha1.Observation{*o}}
	}
	return patch
}

// FieldManager returns the field manager of one node's entry. The name of a node can have 253
// bytes and the name of a manager only 128, so the field manager contains a hash.
func FieldManager(node string) string {
	sum := sha256.Sum256([]byte(node))
	return "holdfast/" + hex.EncodeToString(sum[:8])
}
