package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const spcToken = "a12f59e2788386a302c5d199b5506725dc85692a880aed3303c5b6b195164a94"

func TestSPCEnvironment(t *testing.T) {
	t.Setenv("SPC_BASE_API_URL", "https://spc.example/")
	t.Setenv("ORGANIZATION_ID", "6")
	t.Setenv("CLUSTER_ID", "504")
	t.Setenv("CLUSTER_API_TOKEN", spcToken)
	got, err := parse([]string{"--spc-token-file=/t", "--spc-cluster=7"})
	require.NoError(t, err)
	want := spcapi.Options{BaseURL: "https://spc.example/", TokenFile: "/t", Organization: 6, Cluster: 7}
	require.Equal(t, want, got.spc)
	got, err = parse(nil)
	require.NoError(t, err)
	require.Equal(t, spcapi.Options{}, got.spc, "SPC is configured without a token")
	t.Setenv("ORGANIZATION_ID", "mine")
	_, err = parse([]string{"--spc-token-file=/t"})
	require.ErrorContains(t, err, "the environment variable ORGANIZATION_ID: it must be a number above 0")
}

// startSPC starts an SPC API with one machine that never becomes a node, and returns the
// directory of its Secret. For the cluster the API returns an error that contains the
// token of the request.
func startSPC(t *testing.T) (secretDir string) {
	t.Helper()
	api := &spcserver.Server{Token: spcToken, Organization: "6", Cluster: "504"}
	api.SetNodes(spc.Record{
		PK: 1032, InstanceID: "spcvd7ah21-worker-2", State: "draft", Created: "2016-09-27T22:09:57.091286Z",
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/504") {
			spcserver.Failures()["echo"](w, r)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	secretDir = t.TempDir()
	for key, value := range map[string]string{
		"api-token": spcToken, "api-url": server.URL + "/", "organization-id": "6", "cluster-id": "504",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(secretDir, key), []byte(value), 0o600))
	}
	return secretDir
}

// checkSPC checks that the webhook reports the machine, and that no output contains the
// token.
func (f *fixture) checkSPC(t *testing.T) {
	t.Helper()
	var metrics string
	require.Eventually(t, func() bool {
		metrics = ""
		for _, replica := range f.replicas {
			metrics += replica.fetchMetrics(t)
		}
		return strings.Contains(metrics, "holdfast_spc_machines_never_nodes 1")
	}, soon, 50*time.Millisecond)
	require.Equal(t, 1, strings.Count(metrics, "\nholdfast_spc_inventory_age_seconds "), "only the leader has this metric")
	var events string
	require.Eventually(t, func() bool {
		list, err := f.Client().CoreV1().Events("holdfast-system").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		events = list.String()
		return strings.Contains(events, "SPCMachineNeverNode")
	}, soon, 50*time.Millisecond)
	configMaps, err := f.Client().CoreV1().ConfigMaps("holdfast-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	logs := f.replicas[0].LogTail(1000) + f.replicas[1].LogTail(1000)
	require.Contains(t, logs, "<the token>")
	for _, output := range []string{metrics, events, configMaps.String(), logs} {
		require.NotContains(t, output, spcToken[:16])
	}
}

// TestSPCOverlay checks that the webhook accepts the command line of the overlay, and
// that the overlay's Secret is optional.
func TestSPCOverlay(t *testing.T) {
	kubectl, err := process.Binary("kubectl")
	require.NoError(t, err)
	built, err := exec.CommandContext(t.Context(), kubectl, "kustomize", "../../manifests/overlays/spc").Output()
	require.NoError(t, err)
	for text := range strings.SplitSeq(string(built), "\n---\n") {
		var d appsv1.Deployment
		if err := yaml.Unmarshal([]byte(text), &d); err != nil || d.Kind != "Deployment" {
			continue
		}
		pod := d.Spec.Template.Spec
		args := strings.Fields(strings.ReplaceAll(strings.Join(pod.Containers[0].Args, " "), "$(NAMESPACE)", d.Namespace))
		got, err := parse(args)
		require.NoError(t, err)
		require.Equal(t, spcapi.Options{SecretDir: "/var/run/secrets/stackpointio"}, got.spc)
		require.Equal(t, got.spc.SecretDir, pod.Containers[0].VolumeMounts[0].MountPath)
		require.True(t, *pod.Volumes[0].Secret.Optional, "the webhook must not wait for SPC's token")
		return
	}
	require.Fail(t, "the overlay has no Deployment")
}
