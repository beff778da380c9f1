// Package charts_test tests the Helm chart with the real helm: it makes the same objects as the
// manifests for kustomize, refuses choices that contradict each other, and installs, upgrades and
// rolls back on a real API server.
package charts_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const namespace = "holdfast-system"

// The keys of objects that several tests read.
const (
	agent   = "apps/v1 DaemonSet holdfast-agent"
	webhook = "apps/v1 Deployment holdfast-webhook"
	policy  = "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy holdfast-born-held"
)

// An object is a parsed document of YAML.
type object = map[string]any

// helm runs helm and returns its standard output and standard error.
func helm(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	require.NoError(t, process.TrackInputs("holdfast", "../manifests"))
	program, err := process.Binary("helm")
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), program, args...)
	command.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + kubeconfig}
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("running helm %q: %w: %s", args, err, out)
	}
	return string(out), nil
}

// rendered returns the objects that helm template makes for a version of Kubernetes. A value has
// the form name=value.
func rendered(t *testing.T, version string, values ...string) map[string]object {
	t.Helper()
	out, err := template(t, version, values...)
	require.NoError(t, err)
	return objects(t, out)
}

func template(t *testing.T, version string, values ...string) (string, error) {
	t.Helper()
	args := []string{"template", "holdfast", "holdfast", "--namespace", namespace, "--kube-version", version}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return helm(t, "", args...)
}

// kustomized returns the objects of a kustomization as a user writes it: a directory of manifests
// with components on top, and more lines.
func kustomized(t *testing.T, overlay string, components []string, more string) map[string]object {
	t.Helper()
	manifests, err := filepath.Abs("../manifests")
	require.NoError(t, err)
	dir := t.TempDir()
	manifests, err = filepath.Rel(dir, manifests)
	require.NoError(t, err)
	text := "resources: [" + filepath.Join(manifests, overlay) + "]\n"
	if len(components) > 0 {
		text += "components:\n"
	}
	for _, component := range components {
		text += "- " + filepath.Join(manifests, "components", component) + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text+more), 0o600))
	kubectl, err := process.Binary("kubectl")
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	command.Env = []string{"HOME=" + t.TempDir(), "GOGC=400"} // a quarter less CPU
	out, err := command.Output()
	require.NoError(t, err)
	found := objects(t, string(out))
	require.Contains(t, found, "v1 Namespace holdfast-system", "helm creates the namespace itself")
	delete(found, "v1 Namespace holdfast-system")
	return found
}

// objects returns the objects in a text by apiVersion, kind and name. The order of arguments and
// volumes has no meaning, so they are sorted. The white space in expressions has none either, and
// kustomize changes it in folded text.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	found := map[string]object{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		require.NoError(t, yaml.Unmarshal([]byte(document), &o), document)
		if o == nil {
			continue
		}
		id := fmt.Sprintf("%v %v %v", o["apiVersion"], o["kind"], field(o, "metadata", "name"))
		require.NotContains(t, found, id)
		for _, container := range list(o, "spec", "template", "spec", "containers") {
			sortAny(list(container.(object), "args"))
			sortAny(list(container.(object), "volumeMounts"))
		}
		sortAny(list(o, "spec", "template", "spec", "volumes"))
		if annotations, ok := field(o, "metadata", "annotations").(object); ok {
			delete(annotations, "helm.sh/resource-policy")
		}
		found[id] = unfolded(o).(object)
	}
	return found
}

func sortAny(values []any) {
	slices.SortFunc(values, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// unfolded returns a value with single spaces in every text.
func unfolded(value any) any {
	switch v := value.(type) {
	case object:
		for key := range v {
			v[key] = unfolded(v[key])
		}
	case []any:
		for i := range v {
			v[i] = unfolded(v[i])
		}
	case string:
		return strings.Join(strings.Fields(v), " ")
	}
	return value
}

// field returns a field, or nil if it does not exist.
func field(o object, path ...string) any {
	var value any = o
	for _, key := range path {
		parent, ok := value.(object)
		if !ok {
			return nil
		}
		value = parent[key]
	}
	return value
}

func list(o object, path ...string) []any {
	found, _ := field(o, path...).([]any)
	return found
}

// args returns the arguments of the only container of a workload.
func args(t *testing.T, all map[string]object, id string) []any {
	t.Helper()
	require.Contains(t, all, id)
	containers := list(all[id], "spec", "template", "spec", "containers")
	require.Len(t, containers, 1)
	return list(containers[0].(object), "args")
}
