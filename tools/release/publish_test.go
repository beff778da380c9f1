// Package release_test tests the scripts of this directory with programs of a few bytes, and with
// the real crane, helm and krew.
package release_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// images returns those of a release, in the order of tools/release/build.
func images() []string { return []string{"holdfast-agent", "holdfast-webhook", "kubectl-holdfast"} }

// TestPublish pushes the images and the chart of a release to a registry with a login, and installs
// from there on a real API server. The chart needs no value: it names the images by their digest.
func TestPublish(t *testing.T) {
	r := newRegistry(t)
	release := newRelease(t, r)
	release.run(t, "crane", "auth", "login", r.host, "-u", user, "-p", password)

	printed := release.run(t, "tools/release/publish", release.dir, release.indexes)
	references := strings.Fields(printed)
	require.Len(t, references, len(images())+1, "%s", printed)
	for i, name := range append(images(), "charts/holdfast") {
		require.Regexp(t, `^`+regexp.QuoteMeta(r.repository+"/"+name)+`@sha256:[0-9a-f]{64}$`, references[i])
		release.run(t, "crane", "manifest", references[i])
	}
	require.Equal(t, printed, release.run(t, "tools/release/publish", release.dir, release.indexes),
		"a second attempt publishes the same")

	chart := "oci://" + r.repository + "/charts/holdfast"
	requireListable(t, release.run(t, "helm", "show", "chart", chart, "--version", version(t)[1:]), references)
	pulled := t.TempDir()
	release.run(t, "helm", "pull", chart, "--version", version(t)[1:], "--untar", "--untardir", pulled)
	requireLicense(t, filepath.Join(pulled, "holdfast", "LICENSE"))

	server := apiserver.New(t)
	release.run(t, "helm", "install", "holdfast", chart, "--version", version(t)[1:], "--kubeconfig", server.Kubeconfig(),
		"--namespace", "holdfast-system", "--create-namespace")
	apps := server.Client().AppsV1()
	agent, err := apps.DaemonSets("holdfast-system").Get(t.Context(), "holdfast-agent", metav1.GetOptions{})
	require.NoError(t, err)
	webhook, err := apps.Deployments("holdfast-system").Get(t.Context(), "holdfast-webhook", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, references[0], onlyImage(t, agent.Spec.Template))
	require.Equal(t, references[1], onlyImage(t, webhook.Spec.Template))
}

// TestPublishRefused checks that a release is not published without a login, and not if the images
// are others than those of the chart.
func TestPublishRefused(t *testing.T) {
	r := newRegistry(t)
	release := newRelease(t, r)
	_, err := release.try(t, "tools/release/publish", release.dir, release.indexes)
	require.ErrorContains(t, err, "401")

	release.run(t, "crane", "auth", "login", r.host, "-u", user, "-p", password)
	file := filepath.Join(release.dir, "image-digests.txt")
	other := "holdfast-agent sha256:" + strings.Repeat("0", 64) + "\n"
	require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
	printed, err := release.try(t, "tools/release/publish", release.dir, release.indexes)
	require.ErrorContains(t, err, "want the digest sha256:0000")
	require.NotContains(t, printed, "@", "there is nothing to sign")
}

// requireListable checks what Artifact Hub reads from Chart.yaml.
func requireListable(t *testing.T, text string, references []string) {
	t.Helper()
	var chart struct {
		Icon        string
		Maintainers []struct{ Name, URL string }
		Annotations map[string]string
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &chart), text)
	require.Regexp(t, `/docs/images/icon\.svg$`, chart.Icon)
	require.FileExists(t, "../../docs/images/icon.svg")
	require.Len(t, chart.Maintainers, 1)
	require.Regexp(t, `/\.github/MAINTAINERS\.md$`, chart.Maintainers[0].URL)
	require.FileExists(t, "../../.github/MAINTAINERS.md")
	require.Equal(t, "Apache-2.0", chart.Annotations["artifacthub.io/license"])
	require.Equal(t, strconv.FormatBool(strings.Contains(version(t), "-")), chart.Annotations["artifacthub.io/prerelease"])

	var listed []struct{ Name, Image string }
	require.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/images"]), &listed))
	require.Len(t, listed, len(images()))
	for i, image := range listed {
		require.Equal(t, images()[i], image.Name)
		require.Equal(t, references[i], image.Image)
	}
	for _, annotation := range []string{"changes", "crds", "links"} {
		var entries []map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/"+annotation]), &entries), annotation)
		require.NotEmpty(t, entries, annotation)
	}
}

func requireLicense(t *testing.T, file string) {
	t.Helper()
	want, err := os.ReadFile("../../LICENSE")
	require.NoError(t, err)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func onlyImage(t *testing.T, pod corev1.PodTemplateSpec) string {
	t.Helper()
	require.Len(t, pod.Spec.Containers, 1)
	return pod.Spec.Containers[0].Image
}
