package charts_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

// TestSameObjects compares the chart with kustomize, object by object, for every autoscaler and
// hold mode, with and without SPC and the policy of Kubernetes 1.36.
func TestSameObjects(t *testing.T) {
	wanted := map[string]map[string]object{} // several rows have the same kustomization
	for _, c := range []struct {
		version, values, overlay string
		components               []string
	}{
		{"1.33.5", "", ".", nil},
		{"1.34.1-gke.1829001", "hold.mode=cordon", ".", nil},
		{"1.35.0", "autoscaler=cluster-autoscaler,hold.mode=cordon", ".", nil},
		{"1.33.5", "hold.mode=taint", "overlays/taint-mode", nil},
		{"1.33.5", "autoscaler=cluster-autoscaler", "overlays/cluster-autoscaler", nil},
		{"1.33.5", "autoscaler=cluster-autoscaler,hold.mode=taint", "overlays/cluster-autoscaler", nil},
		{"1.33.5", "autoscaler=karpenter", "overlays/karpenter", nil},
		{"1.33.5", "autoscaler=karpenter,hold.mode=taint", "overlays/karpenter", nil},
		{"1.35.0", "spc.enabled=true", "overlays/spc", nil},
		{"1.36.0", "", "overlays/born-held", nil},
		{"1.37.2", "hold.mode=taint", "overlays/taint-mode", []string{"born-held"}},
		{"1.36.0", "autoscaler=karpenter", "overlays/karpenter", []string{"born-held"}},
		{"1.37.2", "autoscaler=karpenter,spc.enabled=true", "overlays/karpenter", []string{"spc", "born-held"}},
		{
			"1.36.0", "autoscaler=cluster-autoscaler,spc.enabled=true", "overlays/cluster-autoscaler",
			[]string{"born-held", "spc"},
		},
	} {
		id := c.overlay + " " + strings.Join(c.components, " ")
		if wanted[id] == nil {
			wanted[id] = kustomized(t, c.overlay, c.components, "")
		}
		t.Run(c.version+" "+c.values, func(t *testing.T) {
			requireSame(t, wanted[id], rendered(t, c.version, c.values))
		})
	}
}

// TestSameParts compares the other parts, each of which is a component.
func TestSameParts(t *testing.T) {
	const sources = `patches:
- target: {kind: NetworkPolicy, name: holdfast-webhook}
  patch: |
    - op: replace
      path: /spec/ingress/0/from
      value: [{ipBlock: {cidr: 192.0.2.11/32}}, {ipBlock: {cidr: "2001:db8::/64"}}]
`
	for name, part := range map[string]struct {
		values     []string
		components []string
		more       string
	}{
		"Cluster API": {[]string{"clusterAPI.enabled=true"}, []string{"cluster-api"}, ""},
		"NodeClaims":  {[]string{"karpenterNodeClaims.enabled=true"}, []string{"karpenter-nodeclaims"}, ""},
		"both": {
			[]string{"clusterAPI.enabled=true", "karpenterNodeClaims.enabled=true"},
			[]string{"cluster-api", "karpenter-nodeclaims"},
			"",
		},
		"cert-manager": {[]string{"certificates.mode=cert-manager"}, []string{"cert-manager"}, ""},
		"metrics":      {[]string{"metrics.enabled=true"}, []string{"metrics"}, ""},
		"monitoring":   {[]string{"monitoring.enabled=true"}, []string{"monitoring"}, ""},
		"two volumes": {
			[]string{"certificates.mode=cert-manager", "spc.enabled=true"}, []string{"spc", "cert-manager"}, "",
		},
		"sources": {
			[]string{"webhook.apiServerSources={192.0.2.11/32,2001:db8::/64}"}, []string{"api-server-sources"}, sources,
		},
		"files and variables": {
			[]string{
				"webhook.extraVolumes[0].name=clients", "webhook.extraVolumes[0].configMap.name=holdfast-clients",
				"webhook.extraVolumeMounts[0].name=clients", "webhook.extraVolumeMounts[0].mountPath=/etc/holdfast/clients",
				"webhook.extraArgs={--client-ca-file=/etc/holdfast/clients/ca.crt,--client-name=kube-apiserver}",
				"webhook.extraEnv[0].name=A", "webhook.extraEnv[0].value=b",
				"agent.extraEnv[0].name=C", "agent.extraEnv[0].value=d",
			},
			nil, `patches:
- target: {kind: Deployment, name: holdfast-webhook}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --client-ca-file=/etc/holdfast/clients/ca.crt}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --client-name=kube-apiserver}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: A, value: b}}
    - op: add
      path: /spec/template/spec/volumes
      value: [{name: clients, configMap: {name: holdfast-clients}}]
    - op: add
      path: /spec/template/spec/containers/0/volumeMounts
      value: [{name: clients, mountPath: /etc/holdfast/clients}]
- target: {kind: DaemonSet, name: holdfast-agent}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: C, value: d}}
`,
		},
		"drains and digests": {
			[]string{
				"drains.enabled=false",
				"agent.image.repository=r.example.org:5000/a", "agent.image.digest=sha256:" + strings.Repeat("a", 64),
				"webhook.image.tag=v9", "webhook.extraArgs={--on-stuck-hold=release}",
			},
			nil, `images:
- {name: holdfast-agent, newName: "r.example.org:5000/a", digest: "sha256:` + strings.Repeat("a", 64) + `"}
- {name: holdfast-webhook, newTag: v9}
patches:
- target: {kind: Deployment, name: holdfast-webhook}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --on-stuck-hold=release}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --guard-drains=false}
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireSame(t, kustomized(t, ".", part.components, part.more), rendered(t, "1.34.0", part.values...))
		})
	}
}

// TestDetectedVersion checks that the chart detects whether the cluster has the policy. Programs
// that render for a cluster, such as Argo CD, pass all its kinds.
func TestDetectedVersion(t *testing.T) {
	const kind = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
	for name, c := range map[string]struct {
		version string
		kinds   []string
		want    bool
	}{
		"1.36":                    {"1.36.0", []string{"v1/Node", kind}, true},
		"provider's 1.36":         {"1.36.2-eks-1a2b3c4", []string{"v1/Node", kind}, true},
		"1.36, policies disabled": {"1.36.0", []string{"v1/Node"}, false},
		"1.35":                    {"1.35.4", []string{"v1/Node"}, false},
		"no cluster, 1.36":        {"1.36.0", nil, true},
		"no cluster, 1.35":        {"1.35.0", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"template", "holdfast", "holdfast", "--namespace", namespace, "--kube-version", c.version}
			for _, kind := range c.kinds {
				args = append(args, "--api-versions", kind)
			}
			out, err := helm(t, "", args...)
			require.NoError(t, err)
			_, found := objects(t, out)[policy]
			require.Equal(t, c.want, found)
		})
	}
}

func requireSame(t *testing.T, kustomize, chart map[string]object) {
	t.Helper()
	require.ElementsMatch(t, slices.Collect(maps.Keys(kustomize)), slices.Collect(maps.Keys(chart)))
	for id, want := range kustomize {
		require.Equal(t, want, chart[id], "%s: the chart (actual) differs from kustomize (expected)", id)
	}
}

// TestRendered checks that the manifests for kustomize are what charts/render makes of the chart.
func TestRendered(t *testing.T) {
	program, err := process.Binary("helm")
	require.NoError(t, err)
	require.NoError(t, process.TrackInputs("holdfast", "../manifests"))
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), "./render", dir)
	command.Env = []string{"HELM=" + program, "HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	out, err := command.CombinedOutput()
	require.NoError(t, err, string(out))
	count := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join("../manifests", name))
		require.NoError(t, err, "run make generate")
		require.Equal(t, string(want), string(got), "manifests/%s: change the chart, and run make generate", name)
		count++
		return nil
	}))
	require.Equal(t, 24, count)
}
