package manifests_test

import (
	"encoding/json"
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

// static returns the options of an API server with the files of docs/static-admission and the alpha
// API of evictions, and the directory of the files. It is empty before Kubernetes 1.37, which has
// neither.
func static(t *testing.T) (apiserver.Options, string) {
	t.Helper()
	if apiserver.Minor(t) < 37 {
		return apiserver.Options{}, ""
	}
	files := staticFiles(t)
	return apiserver.Options{Args: []string{
		"--admission-control-config-file=" + filepath.Join(files, "admission.yaml"),
		"--feature-gates=EvictionRequestAPI=true", "--runtime-config=lifecycle.k8s.io/v1alpha1=true",
	}}, files
}

// testStaticAdmission checks that with the files of docs/static-admission no administrator deletes
// the webhook configuration or a policy. An installation, an upgrade and the webhook still write.
func testStaticAdmission(t *testing.T, server *apiserver.Server, files string) {
	if files == "" {
		t.Skip("SKIPPED: this version of Kubernetes reads no policies from files, and has no EvictionRequest")
	}
	require.NoError(t, server.Install(t.Context()), "an upgrade")
	t.Run("eviction request", func(t *testing.T) { testEvictionRequest(t, server) })
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
		before := holdfastNames(t, server, kind)
		require.NotEmpty(t, before)
		for _, name := range before {
			err := deleteRaw(t, server, admissionAPI+kind+"/"+name)
			require.ErrorContains(t, err, "first remove holdfast.yaml from the staticManifestsDir", name)
		}
		err := deleteRaw(t, server, admissionAPI+kind)
		require.ErrorContains(t, err, "first remove holdfast.yaml", "all of %s at once", kind)
		require.Equal(t, before, holdfastNames(t, server, kind))
	}

	require.NoError(t, os.Remove(filepath.Join(files, "static/holdfast.yaml")), "before an uninstallation")
	require.Eventually(t, func() bool {
		return configurations.Delete(t.Context(), "holdfast", metav1.DeleteOptions{}) == nil
	}, 2*time.Minute, time.Second) // the API server reads the directory once a minute
}

// admissionAPI is the path of policies and webhook configurations below /apis/.
const admissionAPI = "admissionregistration.k8s.io/v1/"

// holdfastNames returns the names of the objects of a kind of admissionAPI with the label of
// Holdfast.
func holdfastNames(t *testing.T, server *apiserver.Server, kind string) (names []string) {
	t.Helper()
	text, err := server.Client().RESTClient().Get().AbsPath("/apis/"+admissionAPI+kind).
		Param("labelSelector", "app.kubernetes.io/part-of=holdfast").DoRaw(t.Context())
	require.NoError(t, err)
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal(text, &list))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
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
