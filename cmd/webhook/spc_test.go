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

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/spc"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const spcToken = "a12f59e2788386a302c5d199b5506725dc85692a880aed3303c5b6b195164a94"

func TestSPCFromTheEnvironment(t *testing.T) {
	t.Setenv("SPC_BASE_API_URL", "https://spc.example/")
	t.Setenv("ORGANIZATION_ID", "6")
	t.Setenv("CLUSTER_ID", "504")
	t.Setenv("CLUSTER_API_TOKEN", spcToken)
	got, err := parse([]string{"--spc-token-file=/t", "--spc-cluster=7"})
	require.NoError(t, err)
	require.Equal(t, spcapi.Options{BaseURL: "https://spc.example/", TokenFile: "/t", Organization: 6, Cluster: 7}, got.spc)
	got, err = parse(nil)
	require.NoError(t, err)
	require.Equal(t, spcapi.Options{}, got.spc, "without a token's file nobody is asked")
	t.Setenv("ORGANIZATION_ID", "mine")
	_, err = parse([]string{"--spc-token-file=/t"})
	require.ErrorContains(t, err, "the environment variable ORGANIZATION_ID: it must be a number above 0")
}

// machines is an SPC API with one machine that never becomes a node, and the Secret with which it is reached. It repeats
// the token that it is sent, in an error, for the cluster.
func machines(t *testing.T) (secret string) {
	t.Helper()
	api := &spcserver.Server{Token: spcToken, Organization: "6", Cluster: "504"}
	api.SetNodes(spc.Record{PK: 1032, InstanceID: "spcvd7ah21-worker-2", State: "draft", Created: "2016-09-27T22:09:57.091286Z"})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/504") {
			spcserver.Failures()["echo"](w, r)
			return
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	secret = t.TempDir()
	for key, value := range map[string]string{"api-token": spcToken, "api-url": web.URL + "/", "organization-id": "6", "cluster-id": "504"} {
		require.NoError(t, os.WriteFile(filepath.Join(secret, key), []byte(value), 0o600))
	}
	return secret
}

// tellsOfMachines looks for the machine in all that the webhook says, and for the token.
func (c *cluster) tellsOfMachines(t *testing.T) {
	t.Helper()
	var metrics string
	require.Eventually(t, func() bool {
		metrics = ""
		for _, r := range c.replicas {
			_, text := fetch(t, "http://"+r.metrics+"/metrics")
			metrics += text
		}
		return strings.Contains(metrics, "holdfast_spc_machines_never_nodes 1")
	}, soon, 50*time.Millisecond)
	require.Equal(t, 1, strings.Count(metrics, "\nholdfast_spc_inventory_age_seconds "), "the leader's alone")
	var events string
	require.Eventually(t, func() bool {
		found, err := c.Client().CoreV1().Events("holdfast-system").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		events = found.String()
		return strings.Contains(events, "SPCMachineNeverNode")
	}, soon, 50*time.Millisecond)
	stored, err := c.Client().CoreV1().ConfigMaps("holdfast-system").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	logs := c.replicas[0].LogTail(1000) + c.replicas[1].LogTail(1000)
	require.Contains(t, logs, "<the token>")
	for _, said := range []string{metrics, events, stored.String(), logs} {
		require.NotContains(t, said, spcToken[:16])
	}
}

// What the overlay gives the webhook is a command line that it takes, and a Secret that it does without.
func TestTheOverlayOfSPC(t *testing.T) {
	kubectl, err := testenv.Binary("kubectl")
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
		require.True(t, *pod.Volumes[0].Secret.Optional, "the guard does not wait for SPC's token")
		return
	}
	require.Fail(t, "there is no Deployment")
}
