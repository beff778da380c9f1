package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestStaticAdmission runs an API server with the files of docs/static-admission. No administrator
// deletes the webhook configuration or a policy. An installation, an upgrade and the webhook still
// write.
func TestStaticAdmission(t *testing.T) {
	if apiserver.Minor(t) < 37 {
		t.Skip("SKIPPED: this version of Kubernetes reads no policies from files, and has no EvictionRequest")
	}
	files := staticFiles(t)
	server := apiserver.NewWith(t, apiserver.Options{
		Args: []string{
			"--admission-control-config-file=" + filepath.Join(files, "admission.yaml"),
			"--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true",
		},
	})
	require.NoError(t, server.Install(t.Context()))
	t.Run("eviction request", func(t *testing.T) { testEvictionRequest(t, server) })
	require.NoError(t, server.Apply(t.Context(), full), "an upgrade")
	const closed, kept = "etcd-nodes.holdfast.dev", "an entry that fails closed must stay"
	configurations := server.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	patch := func(text string) error {
		_, err := configurations.Patch(t.Context(), "holdfast", types.StrategicMergePatchType, []byte(text),
			metav1.PatchOptions{})
		return err
	}
	require.NoError(t, patch(`{"webhooks":[{"name":"`+closed+`","clientConfig":{"caBundle":"eA=="}}]}`))
	require.NoError(t, patch(`{"webhooks":[{"name":"other-nodes.holdfast.dev","timeoutSeconds":2}]}`))
	requireVerdict(t, kept, patch(`{"webhooks":[{"name":"`+closed+`","failurePolicy":"Ignore"}]}`))
	requireVerdict(t, kept, patch(`{"webhooks":[{"name":"`+closed+`","$patch":"delete"}]}`))
	requireVerdict(t, kept, patch(`{"webhooks":null}`))

	for _, kind := range []string{
		"validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
	} {
		out, err := server.Kubectl(t.Context(), "get", kind, "-o", "name", "-l", "app.kubernetes.io/part-of=holdfast")
		require.NoError(t, err)
		for _, object := range strings.Fields(out) {
			_, err := server.Kubectl(t.Context(), "delete", object)
			require.ErrorContains(t, err, "first remove holdfast.yaml from the staticManifestsDir", object)
		}
		path := "/apis/admissionregistration.k8s.io/v1/" + kind
		err = server.Client().RESTClient().Delete().AbsPath(path).Do(t.Context()).Error()
		require.ErrorContains(t, err, "first remove holdfast.yaml", "all of %s at once", kind)
		again, err := server.Kubectl(t.Context(), "get", kind, "-o", "name", "-l", "app.kubernetes.io/part-of=holdfast")
		require.NoError(t, err)
		require.NotEmpty(t, again)
		require.Equal(t, out, again)
	}

	require.NoError(t, os.Remove(filepath.Join(files, "static/holdfast.yaml")), "before an uninstallation")
	require.Eventually(t, func() bool {
		return configurations.Delete(t.Context(), "holdfast", metav1.DeleteOptions{}) == nil
	}, 2*time.Minute, poll)
}

// staticFiles writes the files of docs/static-admission to a directory, and returns it.
func staticFiles(t *testing.T) string {
	t.Helper()
	const shipped = "/etc/kubernetes/holdfast/static"
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "static"), 0o700))
	for from, to := range map[string]string{"admission.yaml": "admission.yaml", "holdfast.yaml": "static/holdfast.yaml"} {
		text, err := os.ReadFile(filepath.Join("../docs/static-admission", from))
		require.NoError(t, err)
		text = []byte(strings.Replace(string(text), shipped, filepath.Join(dir, "static"), 1))
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), text, 0o600))
	}
	return dir
}
