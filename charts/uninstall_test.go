package charts_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUninstallJob checks that the chart has a Job only if a value asks for it. The Job is a hook
// of helm uninstall, with all that it needs. It is that of manifests/uninstall, but leaves the
// objects of the release to Helm.
func TestUninstallJob(t *testing.T) {
	const job = "batch/v1 Job holdfast-uninstall"
	require.NotContains(t, rendered(t, "1.36.0"), job)
	chart := rendered(t, "1.36.0", "uninstall.enabled=true", "uninstall.image.tag=v9", "imagePullSecrets[0].name=mine")
	hooks := 0
	for id, o := range chart {
		annotations, _ := field(o, "metadata", "annotations").(object)
		require.Equal(t, strings.HasSuffix(id, " holdfast-uninstall"), annotations["helm.sh/hook"] == "pre-delete", id)
		if annotations["helm.sh/hook"] == nil {
			continue
		}
		hooks++
		labels, _ := field(o, "metadata", "labels").(object)
		require.NotContains(t, labels, "app.kubernetes.io/part-of", "the program would delete it: %s", id)
		require.Equal(t, "before-hook-creation,hook-succeeded", annotations["helm.sh/hook-delete-policy"], id)
		require.Equal(t, id == job, annotations["helm.sh/hook-weight"] == "0", "the Job needs the others: %s", id)
	}
	require.Equal(t, 6, hooks)

	text, err := os.ReadFile("../manifests/uninstall/job.yaml")
	require.NoError(t, err)
	want, got := objects(t, string(text))[job]["spec"].(object), chart[job]["spec"].(object)
	pod := field(got, "template", "spec").(object)
	require.Equal(t, object{"kubernetes.io/os": "linux"}, pod["nodeSelector"], "on Windows, the image does not run")
	require.Equal(t, []any{object{"name": "mine"}}, pod["imagePullSecrets"])
	delete(pod, "imagePullSecrets")
	container := list(pod, "containers")[0].(object)
	require.Equal(t, "kubectl-holdfast:v9", container["image"])
	require.ElementsMatch(t, []any{"uninstall", "--yes", "--before-helm"}, container["args"])
	delete(container, "imagePullPolicy")
	same := list(want, "template", "spec", "containers")[0].(object)
	container["image"], container["args"] = same["image"], same["args"]
	require.Equal(t, want, got)

	chart = rendered(t, "1.36.0", "uninstall.enabled=true", "webhook.nodeSelector.trusted=yes",
		"webhook.extraTolerations[0].key=dedicated")
	pod = field(chart[job], "spec", "template", "spec").(object)
	require.Contains(t, list(pod, "tolerations"), object{"key": "dedicated"}, "the Job runs where the webhook runs")
	require.Equal(t, object{"kubernetes.io/os": "linux", "trusted": "yes"}, pod["nodeSelector"])
}
