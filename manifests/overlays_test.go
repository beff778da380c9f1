package manifests_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bornHeld is the component that holds nodes in the write that creates them.
const bornHeld = "born-held"

// taintKeys returns the key of the taint by which each overlay holds nodes, by its directory. It is
// empty for the cordon. charts.TestSameObjects compares the overlays with the chart.
func taintKeys() map[string]string {
	return map[string]string{
		"overlays/cluster-autoscaler": "startup-taint.cluster-autoscaler.kubernetes.io/holdfast",
		"overlays/karpenter":          "readiness.k8s.io/holdfast",
		"overlays/taint-mode":         "holdfast.dev/held",
		full:                          "",
		"overlays/spc":                "",
	}
}

// overlays returns the directories of all overlays.
func overlays(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("overlays/*")
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Keys(taintKeys())), found)
	return found
}

// TestOverlays checks what must be true on top of the base and of every overlay. Each is rendered
// once, with the components that change most.
func TestOverlays(t *testing.T) {
	for _, dir := range append(overlays(t), ".") {
		components := []string{"monitoring", bornHeld}
		if dir == full {
			components = components[:1]
		}
		t.Run(dir, func(t *testing.T) {
			all := kustomized(t, withComponent(t, dir, components...))
			t.Run("security contexts", func(t *testing.T) { testSecurityContexts(t, all) })
			t.Run("born held is safe", func(t *testing.T) { testBornHeldIsSafe(t, all) })
			t.Run("monitoring", func(t *testing.T) { testMonitoring(t, all) })
		})
	}
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
