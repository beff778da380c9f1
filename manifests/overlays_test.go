package manifests_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
)

// bornHeld is the component that holds nodes in the write that creates them.
const bornHeld = "born-held"

// overlayChanges describes how an overlay differs from the base. All else is equal.
type overlayChanges struct {
	// agent and webhook are the arguments that the overlay adds.
	agent, webhook []string
	// taintKey is the key of the taint that holds nodes; empty for the cordon.
	taintKey string
	// bornHeld reports whether the overlay has the component.
	bornHeld bool
	// secret is the Secret that the overlay mounts into the webhook.
	secret string
}

// expectedChanges returns the changes of every overlay, by its directory.
func expectedChanges() map[string]overlayChanges {
	return map[string]overlayChanges{
		"overlays/cluster-autoscaler": {taintKey: "startup-taint.cluster-autoscaler.kubernetes.io/holdfast"},
		"overlays/karpenter":          {taintKey: "readiness.k8s.io/holdfast"},
		"overlays/taint-mode":         {taintKey: "holdfast.dev/held"},
		full:                          {bornHeld: true},
		"overlays/spc": {
			agent:   []string{"--spc-inventory=holdfast-system/holdfast-spc-inventory"},
			webhook: []string{"--spc-secret-dir=/var/run/secrets/stackpointio"}, secret: "stackpointio",
		},
	}
}

// overlays returns the directories of all overlays. It fails for an overlay without expected
// changes.
func overlays(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("overlays/*")
	require.NoError(t, err)
	require.Len(t, found, len(expectedChanges()))
	for _, dir := range found {
		require.Contains(t, expectedChanges(), dir, "add the changes of the overlay to expectedChanges")
	}
	return found
}

// withBornHeld returns a directory with the component born-held: the given one if it has it.
func withBornHeld(t *testing.T, dir string) string {
	t.Helper()
	if expectedChanges()[dir].bornHeld {
		return dir
	}
	return withComponent(t, dir, bornHeld)
}

// TestOverlays compares each overlay with the base, object by object: alone, and with the
// component born-held on top.
func TestOverlays(t *testing.T) {
	for _, dir := range overlays(t) {
		t.Run(dir, func(t *testing.T) {
			changes := expectedChanges()[dir]
			if !changes.bornHeld {
				testOverlay(t, kustomized(t, "."), kustomized(t, dir), changes)
			}
			testOverlay(t, kustomized(t, withComponent(t, ".", bornHeld)), kustomized(t, withBornHeld(t, dir)), changes)
		})
	}
}

// TestBornHeldComponent checks what the component adds to the base, and that the agent then no
// longer holds nodes without a record.
func TestBornHeldComponent(t *testing.T) {
	objects := map[string]string{}
	for _, document := range kustomized(t, ".") {
		objects[identity(t, document)] = document
	}
	var added []string
	for _, document := range kustomized(t, full) {
		name := identity(t, document)
		switch base, found := objects[name]; {
		case !found:
			added = append(added, name)
		case name == "DaemonSet/holdfast-agent":
			want, got := parsed[appsv1.DaemonSet](t, base), parsed[appsv1.DaemonSet](t, document)
			args := want.Spec.Template.Spec.Containers[0].Args
			require.Contains(t, args, "--hold-unrecorded")
			args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--hold-unrecorded" })
			want.Spec.Template.Spec.Containers[0].Args = args
			require.Equal(t, want, got)
		default:
			require.Equal(t, base, document)
		}
	}
	require.ElementsMatch(t, []string{
		"ConfigMap/holdfast-born-held", "MutatingAdmissionPolicy/holdfast-born-held",
		"MutatingAdmissionPolicyBinding/holdfast-born-held",
	}, added)
}

func testOverlay(t *testing.T, base, overlay []string, changes overlayChanges) {
	t.Helper()
	objects := map[string]string{}
	for _, document := range overlay {
		require.NotContains(t, objects, identity(t, document))
		objects[identity(t, document)] = document
	}
	for _, document := range base {
		name := identity(t, document)
		got, found := objects[name]
		delete(objects, name)
		require.True(t, found, "%s is missing", name)
		switch name {
		case "DaemonSet/holdfast-agent":
			testAgentChanges(t, document, got, changes)
		case "Deployment/holdfast-webhook":
			testWebhookChanges(t, document, got, changes)
		case "MutatingAdmissionPolicy/holdfast-born-held":
			testPolicyChanges(t, document, got, changes)
		default:
			require.Equal(t, document, got)
		}
	}
	require.Empty(t, objects, "objects that are not in the base")
}

func testAgentChanges(t *testing.T, base, overlay string, changes overlayChanges) {
	t.Helper()
	want, got := parsed[appsv1.DaemonSet](t, base), parsed[appsv1.DaemonSet](t, overlay)
	args := &want.Spec.Template.Spec.Containers[0].Args
	if changes.taintKey != "" {
		require.Equal(t, []string{"--hold-mode=cordon", "--hold-taint-key="}, (*args)[3:5])
		(*args)[3], (*args)[4] = "--hold-mode=taint", "--hold-taint-key="+changes.taintKey
	}
	*args = append(*args, changes.agent...)
	require.Equal(t, want, got)
}

func testWebhookChanges(t *testing.T, base, overlay string, changes overlayChanges) {
	t.Helper()
	want, got := parsed[appsv1.Deployment](t, base), parsed[appsv1.Deployment](t, overlay)
	pod := &got.Spec.Template.Spec
	if changes.secret != "" {
		require.Len(t, pod.Volumes, 1)
		secret := pod.Volumes[0].Secret
		require.Equal(t, changes.secret, secret.SecretName)
		require.True(t, *secret.Optional, "the webhook reviews deletions without the Secret")
		require.Equal(t, int32(0o440), *secret.DefaultMode)
		require.True(t, pod.Containers[0].VolumeMounts[0].ReadOnly)
		pod.Volumes, pod.Containers[0].VolumeMounts = nil, nil
	}
	args := &want.Spec.Template.Spec.Containers[0].Args
	*args = append(*args, changes.webhook...)
	require.Equal(t, want, got)
}

// testPolicyChanges checks that the policy holds by the taint of the agent. All else in it is
// equal.
func testPolicyChanges(t *testing.T, base, overlay string, changes overlayChanges) {
	t.Helper()
	want := parsed[admissionv1.MutatingAdmissionPolicy](t, base)
	got := parsed[admissionv1.MutatingAdmissionPolicy](t, overlay)
	require.Equal(t, admissionv1.Variable{Name: "taintKey", Expression: `""`}, want.Spec.Variables[0])
	want.Spec.Variables[0].Expression = `"` + changes.taintKey + `"`
	require.Equal(t, want, got)
}

// TestOverlayDocuments checks that each overlay begins with a comment about its use, that
// docs/install.md and a page in docs/autoscalers name its directory, and that each page about an
// autoscaler names the directory to install.
func TestOverlayDocuments(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	pages, err := filepath.Glob("../docs/autoscalers/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	all := read("../docs/kubernetes-versions.md")
	for _, page := range pages {
		text := read(page)
		if about := filepath.Base(page); about != "README.md" && about != "etcd-nodes.md" {
			require.Contains(t, text, "[install.md](../install.md#steps)", page)
			require.Regexp(t, "`manifests/(overlays/[a-z-]+)?`", text, page)
		}
		all += text
	}
	install := read("../docs/install.md")
	for _, dir := range overlays(t) {
		text := read(filepath.Join(dir, "kustomization.yaml"))
		require.True(t, strings.HasPrefix(text, "# For "), "%s begins with its use", dir)
		require.Contains(t, install, "`manifests/"+dir+"`")
		require.Contains(t, all, "manifests/"+dir)
	}
}

// withComponent returns a kustomization as a user writes it: an overlay with components on top.
func withComponent(t *testing.T, overlay string, components ...string) string {
	t.Helper()
	dir := t.TempDir()
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	here, err = filepath.Rel(dir, here)
	require.NoError(t, err)
	text := "resources: [" + filepath.Join(here, overlay) + "]\ncomponents:\n"
	for _, component := range components {
		text += "- " + filepath.Join(here, "components", component) + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600))
	return dir
}
