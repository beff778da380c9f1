//go:build e2e

package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

const settleAnnotation = "holdfast.dev/settle"

// ours returns the EtcdCluster of our units, and not that of the control plane's etcd.
func (c *cluster) ours(ctx context.Context) (*v1alpha1.EtcdCluster, string, error) {
	out, err := c.client.RESTClient().Get().AbsPath("/apis/holdfast.dev/v1alpha1/etcdclusters").DoRaw(ctx)
	if err != nil {
		return nil, "", err
	}
	var list v1alpha1.EtcdClusterList
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, "", fmt.Errorf("reading EtcdClusters: %w", err)
	}
	for i := range list.Items {
		found := &list.Items[i]
		for _, m := range found.Spec.Members {
			if m.Node == c.controlPlane() {
				found = nil
				break
			}
		}
		if found != nil && len(found.Spec.Members) > 0 {
			found.ManagedFields = nil
			return found, pretty(found), nil
		}
	}
	return nil, "", errors.New("there is no EtcdCluster whose members are bound to workers")
}

func (c *cluster) etcdCluster(t *testing.T) *v1alpha1.EtcdCluster {
	t.Helper()
	found, _, err := c.ours(t.Context())
	require.NoError(t, err)
	return found
}

// settle ends every open grant by hand, as an operator does who knows that the machines are there. A grant that is too young
// to be settled so is named again and again.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	for _, grant := range c.etcdCluster(t).Spec.Grants {
		c.eventually(t, "the grant for node "+grant.Node+" is settled", long, func(ctx context.Context) (bool, string) {
			found, text, err := c.ours(ctx)
			if err != nil {
				return false, err.Error()
			}
			if !slices.ContainsFunc(found.Spec.Grants, func(g v1alpha1.Grant) bool { return g.NodeUID == grant.NodeUID }) {
				return true, ""
			}
			if found.Annotations[settleAnnotation] == "" {
				c.kubectl(t, "annotate", "--overwrite", "etcdcluster", found.Name, settleAnnotation+"="+string(grant.NodeUID))
			}
			return false, text
		})
	}
}
