package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// testNodeRoles checks that neither a kubelet nor the accounts of Holdfast can give a Node a role,
// by which its word would count.
func testNodeRoles(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own")
	config, err := server.Kubelet("own")
	require.NoError(t, err)
	kubelet := clientOf(t, config)
	agent, webhook := serviceAccount(t, server, "holdfast-agent", "own"), serviceAccount(t, server, "holdfast-webhook", "")
	require.NoError(t, patchDry(t.Context(), kubelet, "own", labels(`{"env":"test"}`)), "other labels are allowed")
	for _, role := range observation.RoleLabels() {
		patch := labels(`{"` + role + `":""}`)
		for _, subresource := range [][]string{nil, {"status"}} {
			err := patchDry(t.Context(), kubelet, "own", patch, subresource...)
			require.True(t, apierrors.IsForbidden(err), "%s: %v", role, err)
			require.ErrorContains(t, err, "is not allowed to modify labels: "+role)
			requireVerdict(t, "not "+role, patchDry(t.Context(), agent, "own", patch, subresource...))
		}
		requireVerdict(t, role, patchDry(t.Context(), webhook, "own", patch))

		_, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "early", Labels: map[string]string{role: ""}})
		require.True(t, apierrors.IsForbidden(err), "a kubelet registers with %s: %v", role, err)
		require.NoError(t, patchDry(t.Context(), server.Client(), "own", patch))
	}
}
