package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// promise is what an overlay changes of the base. What is not named here it leaves as it is.
type promise struct {
	// agent and webhook are the arguments that it adds.
	agent, webhook []string
	// taintKey is the taint by which nodes are held; empty for the cordon.
	taintKey string
	// open says that nodes are not born held.
	open bool
	// secret is what it mounts into the webhook.
	secret string
}

// promises has every overlay, by its directory.
func promises() map[string]promise {
	const startup, readiness, plain = "startup-taint.cluster-autoscaler.kubernetes.io/holdfast", "readiness.k8s.io/holdfast", "holdfast.dev/held"
	return map[string]promise{
		"overlays/cluster-autoscaler": {agent: []string{"--hold-mode=taint", "--hold-taint-key=" + startup}, taintKey: startup},
		"overlays/karpenter":          {agent: []string{"--hold-mode=taint", "--hold-taint-key=" + readiness}, taintKey: readiness},
		"overlays/taint-mode":         {agent: []string{"--hold-mode=taint", "--hold-taint-key=" + plain}, taintKey: plain},
		"overlays/without-born-held":  {agent: []string{"--hold-unrecorded"}, open: true},
		"overlays/spc": {
			agent:   []string{"--spc-inventory=holdfast-system/holdfast-spc-inventory"},
			webhook: []string{"--spc-secret-dir=/var/run/secrets/stackpointio"}, secret: "stackpointio",
		},
	}
}

// overlays returns the directories of all overlays that there are. One without a promise fails the test.
func overlays(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("overlays/*")
	require.NoError(t, err)
	require.Len(t, found, len(promises()))
	for _, dir := range found {
		require.Contains(t, promises(), dir, "say in promises() what it changes")
	}
	return found
}

// TestOverlaysKeepTheirPromises compares each overlay with the base, object by object, by itself and below the component
// that takes it to older versions of Kubernetes.
func TestOverlaysKeepTheirPromises(t *testing.T) {
	base := kustomized(t, ".")
	for _, dir := range overlays(t) {
		t.Run(dir, func(t *testing.T) {
			promised := promises()[dir]
			testPromise(t, base, kustomized(t, dir), promised)
			if !promised.open {
				promised.open, promised.agent = true, append(promised.agent, "--hold-unrecorded")
				testPromise(t, base, kustomized(t, withoutBornHeld(t, dir)), promised)
			}
		})
	}
}

func testPromise(t *testing.T, base, shipped []string, promised promise) {
	t.Helper()
	made := map[string]string{}
	for _, document := range shipped {
		require.NotContains(t, made, identity(t, document))
		made[identity(t, document)] = document
	}
	for _, document := range base {
		name := identity(t, document)
		got, there := made[name]
		delete(made, name)
		if promised.open && strings.HasSuffix(name, "/holdfast-born-held") {
			require.False(t, there, "%s: Kubernetes before 1.36 does not know it", name)
			continue
		}
		require.True(t, there, "%s is missing", name)
		switch name {
		case "DaemonSet/holdfast-agent":
			testAgentPromise(t, document, got, promised)
		case "Deployment/holdfast-webhook":
			testWebhookPromise(t, document, got, promised)
		case "MutatingAdmissionPolicy/holdfast-born-held":
			testPolicyPromise(t, document, got, promised)
		default:
			require.Equal(t, document, got)
		}
	}
	require.Empty(t, made, "objects that the base has not")
}

func testAgentPromise(t *testing.T, base, shipped string, promised promise) {
	t.Helper()
	want, got := parsed[appsv1.DaemonSet](t, base), parsed[appsv1.DaemonSet](t, shipped)
	args := &want.Spec.Template.Spec.Containers[0].Args
	*args = append(*args, promised.agent...)
	require.Equal(t, want, got)
}

func testWebhookPromise(t *testing.T, base, shipped string, promised promise) {
	t.Helper()
	want, got := parsed[appsv1.Deployment](t, base), parsed[appsv1.Deployment](t, shipped)
	pod := &got.Spec.Template.Spec
	if promised.secret != "" {
		require.Len(t, pod.Volumes, 1)
		secret := pod.Volumes[0].Secret
		require.Equal(t, promised.secret, secret.SecretName)
		require.True(t, *secret.Optional, "deletions are judged without it")
		require.Equal(t, int32(0o440), *secret.DefaultMode)
		require.True(t, pod.Containers[0].VolumeMounts[0].ReadOnly)
		pod.Volumes, pod.Containers[0].VolumeMounts = nil, nil
	}
	args := &want.Spec.Template.Spec.Containers[0].Args
	*args = append(*args, promised.webhook...)
	require.Equal(t, want, got)
}

// testPolicyPromise: the policy and the agent mean the same taint, and a node that is held by one is not cordoned.
func testPolicyPromise(t *testing.T, base, shipped string, promised promise) {
	t.Helper()
	want, got := parsed[admissionv1.MutatingAdmissionPolicy](t, base), parsed[admissionv1.MutatingAdmissionPolicy](t, shipped)
	if promised.taintKey == "" {
		require.Equal(t, want, got)
		return
	}
	require.Equal(t, admissionv1.Variable{Name: "taintKey", Expression: `"` + promised.taintKey + `"`}, got.Spec.Variables[0])
	require.Equal(t, want.Spec.MatchConditions[:1], got.Spec.MatchConditions, "whoever is cordoned by others is held by a taint all the same")
	for _, mutation := range got.Spec.Mutations {
		require.True(t, mutation.JSONPatch != nil || !strings.Contains(mutation.ApplyConfiguration.Expression, "spec"))
	}
	got.Spec.Variables[0], got.Spec.MatchConditions, got.Spec.Mutations = want.Spec.Variables[0], want.Spec.MatchConditions, want.Spec.Mutations
	require.Equal(t, want, got)
}

// TestOverlaysAreExplained: each says on top for whom it is, and a page has the command that installs it; each page about an
// autoscaler has the command that installs what is right there.
func TestOverlaysAreExplained(t *testing.T) {
	pages, err := filepath.Glob("../docs/autoscalers/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	var commands strings.Builder
	for _, page := range append(pages, "../docs/kubernetes-versions.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		if filepath.Base(page) != "README.md" {
			require.Contains(t, string(text), "kubectl apply -k manifests/", page)
		}
		commands.Write(text)
	}
	for _, dir := range overlays(t) {
		text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), "# For "), "%s begins with for whom it is", dir)
		require.Contains(t, commands.String(), "kubectl apply -k manifests/"+dir+"\n")
	}
}

// testStrictDryRun: the API server takes every object as it stands, knows every field, and warns of nothing.
func testStrictDryRun(t *testing.T, server *testenv.APIServer, dir string) {
	out, err := server.Kubectl(t.Context(), "apply", "-k", dir, "--dry-run=server", "--validate=strict", "--server-side")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, len(kustomized(t, dir)), out)
	for _, line := range lines {
		require.True(t, strings.HasSuffix(line, " serverside-applied (server dry run)"), line)
	}
}

// withoutBornHeld returns a kustomization of the kind that a user writes: an overlay, and the component on top of it.
func withoutBornHeld(t *testing.T, overlay string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	here, err = filepath.Rel(dir, here)
	require.NoError(t, err)
	text := "resources: [" + filepath.Join(here, overlay) + "]\ncomponents: [" + filepath.Join(here, "components/without-born-held") + "]\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}

func identity(t *testing.T, document string) string {
	t.Helper()
	object := kind(t, document)
	return object.Kind + "/" + object.Name
}
