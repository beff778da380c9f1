package charts_test

import (
	"fmt"
	"io/fs"
	"maps"
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

const (
	agent   = "apps/v1 DaemonSet holdfast-agent"
	webhook = "apps/v1 Deployment holdfast-webhook"
	policy  = "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy holdfast-born-held"
)

// TestSameObjects compares the chart with kustomize, object by object, for every supported
// combination of autoscaler, hold mode, version of Kubernetes, and SPC.
func TestSameObjects(t *testing.T) {
	for _, choice := range []struct {
		autoscaler, mode string
		overlay          string
	}{
		{"none", "auto", "."},
		{"none", "cordon", "."},
		{"none", "taint", "overlays/taint-mode"},
		{"cluster-autoscaler", "auto", "overlays/cluster-autoscaler"},
		{"cluster-autoscaler", "cordon", "."},
		{"cluster-autoscaler", "taint", "overlays/cluster-autoscaler"},
		{"karpenter", "auto", "overlays/karpenter"},
		{"karpenter", "taint", "overlays/karpenter"},
	} {
		for _, components := range [][]string{nil, {"spc"}, {"born-held"}, {"spc", "born-held"}, {"born-held", "spc"}} {
			versions := []string{"1.32.0", "1.33.5", "1.34.1-gke.1829001", "1.35.0"}
			if slices.Contains(components, "born-held") {
				versions = []string{"1.36.0"}
			}
			want := kustomized(t, choice.overlay, components, "")
			for _, version := range versions {
				values := []string{
					"autoscaler=" + choice.autoscaler, "hold.mode=" + choice.mode,
					fmt.Sprintf("spc.enabled=%t", slices.Contains(components, "spc")),
				}
				t.Run(version+" "+strings.Join(values, " "), func(t *testing.T) {
					requireSame(t, want, rendered(t, version, values...))
				})
			}
		}
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
		"drains": {[]string{"drains.enabled=false"}, nil, `patches:
- target: {kind: Deployment, name: holdfast-webhook}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --guard-drains=false}
`},
		"digests": {
			[]string{
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
	require.Equal(t, []any{object{"name": "mine"}}, pod["imagePullSecrets"])
	delete(pod, "imagePullSecrets")
	container := list(pod, "containers")[0].(object)
	require.Equal(t, "kubectl-holdfast:v9", container["image"])
	require.ElementsMatch(t, []any{"uninstall", "--yes", "--before-helm"}, container["args"])
	delete(container, "imagePullPolicy")
	same := list(want, "template", "spec", "containers")[0].(object)
	container["image"], container["args"] = same["image"], same["args"]
	require.Equal(t, want, got)
}

// TestTaintKey checks that the agent and the policy hold by the same key, whichever it is.
func TestTaintKey(t *testing.T) {
	for _, key := range []string{
		"holdfast.dev/held", "readiness.k8s.io/mine", "startup-taint.cluster-autoscaler.kubernetes.io/network",
	} {
		chart := rendered(t, "1.36.0", "hold.mode=taint", "hold.taintKey="+key)
		require.Contains(t, args(t, chart, agent), "--hold-taint-key="+key)
		variable := list(chart[policy], "spec", "variables")[0].(object)
		require.Equal(t, object{"name": "taintKey", "expression": `"` + key + `"`}, variable)
	}
}

// TestRefused checks that choices that contradict each other end in an error that names the value.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		version string
		values  []string
		want    string
	}{
		"cordon with Karpenter": {"1.36.0", []string{"autoscaler=karpenter", "hold.mode=cordon"}, "buys another one"},
		"key with cordon":       {"1.36.0", []string{"hold.taintKey=holdfast.dev/x"}, "set hold.mode=taint"},
		"key of another domain": {"1.36.0", []string{"hold.mode=taint", "hold.taintKey=example.com/x"}, "taintKey"},
		"key with a quote":      {"1.36.0", []string{"hold.mode=taint", `hold.taintKey=holdfast.dev/x"y`}, "taintKey"},
		"unknown autoscaler":    {"1.36.0", []string{"autoscaler=escalator"}, "cluster-autoscaler"},
		"born held on 1.35":     {"1.35.9", []string{"bornHeld=enabled"}, "requires Kubernetes 1.36"},
		"Secret without CA":     {"1.36.0", []string{"certificates.mode=secret"}, "--set-file certificates.caBundle"},
		"CA without a Secret": {
			"1.36.0", []string{"certificates.caBundle=-----BEGIN CERTIFICATE-----"}, "set certificates.mode=secret",
		},
		"issuer without cert-manager": {
			"1.36.0", []string{"certificates.issuerRef.name=mine"}, "set certificates.mode=cert-manager",
		},
		"equal ports": {
			"1.36.0", []string{"metrics.enabled=true", "agent.healthPort=11878"}, "set one of them to another port",
		},
		"field of resources": {"1.36.0", []string{"agent.resources.limit.memory=1Gi"}, "additional properties 'limit'"},
		"list of limits":     {"1.36.0", []string{"webhook.resources.limits={1Gi}"}, "/webhook/resources/limits"},
		"low limit":          {"1.36.0", []string{"webhook.resources.limits.memory=200Mi"}, "raise the limit"},
		"low limit in bytes": {"1.36.0", []string{"webhook.resources.limits.memory=209715200"}, "raise the limit"},
		"high limit of Go":   {"1.36.0", []string{"webhook.goMemoryLimit=1GiB"}, "lower it"},
		"webhook's equal ports": {
			"1.36.0", []string{"webhook.port=8081"}, "webhook.healthPort and webhook.port are the same",
		},
		"equal ports of a node": {
			"1.36.0", []string{"webhook.hostNetwork=true", "webhook.healthPort=11877"}, "agent.healthPort and webhook",
		},
		"equal ports for metrics": {
			"1.36.0",
			[]string{"webhook.hostNetwork=true", "metrics.enabled=true", "webhook.metricsPort=11878"},
			"metrics.agentPort and webhook.metricsPort",
		},
		"sources on the host network": {
			"1.36.0", []string{"webhook.hostNetwork=true", "webhook.apiServerSources={192.0.2.1/32}"}, "no NetworkPolicy",
		},
		"label of a selector": {
			"1.36.0", []string{`agent.podLabels.app\.kubernetes\.io/name=x`}, "agent.podLabels: Holdfast or Kubernetes selects",
		},
		"label of Holdfast": {
			"1.36.0", []string{`webhook.podLabels.holdfast\.dev/drain-guard=x`}, "by the label holdfast.dev/drain-guard",
		},
		"label of a controller": {
			"1.36.0", []string{"webhook.podLabels.pod-template-hash=a"}, "by the label pod-template-hash",
		},
		"number as a label":   {"1.36.0", []string{"webhook.podLabels.a=1"}, "got number, want string"},
		"misspelled affinity": {"1.36.0", []string{"webhook.affinity.podAffinitty.a=b"}, "podAffinitty"},
		"constraint without a key": {
			"1.36.0", []string{"webhook.topologySpreadConstraints[0].maxSkew=1"}, "missing properties 'topologyKey'",
		},
		"unknown alert": {
			"1.36.0",
			[]string{"monitoring.disabledAlerts={HoldfastGrantOpen,Holdfast}"},
			`there is no alert "Holdfast"; the alerts are HoldfastAgentMissing, HoldfastBornHeldSwitchedOff, `,
		},
		"severity":           {"1.36.0", []string{"monitoring.ruleLabels.severity=page"}, "a severity of its own"},
		"label of a rule":    {"1.36.0", []string{"monitoring.ruleLabels.a/b=c"}, "use letters, digits and _ only"},
		"interval":           {"1.36.0", []string{"monitoring.interval=1min"}, "/monitoring/interval"},
		"low port":           {"1.36.0", []string{"metrics.agentPort=80"}, "agentPort"},
		"misspelled value":   {"1.36.0", []string{"autoscaller=none"}, "autoscaller"},
		"tag in repository":  {"1.36.0", []string{"agent.image.repository=example.org/a:v1"}, "repository"},
		"short digest":       {"1.36.0", []string{"agent.image.digest=sha256:1234"}, "digest"},
		"no replica":         {"1.36.0", []string{"webhook.replicas=0"}, "replicas"},
		"address, not CIDR":  {"1.36.0", []string{"webhook.apiServerSources={192.0.2.1}"}, "apiServerSources"},
		"Kubernetes 1.31":    {"1.31.9", nil, "1.32"},
		"drains as a string": {"1.36.0", []string{"drains.enabled=off"}, "enabled"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := template(t, c.version, c.values...)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("other namespace", func(t *testing.T) {
		_, err := helm(t, "", "template", "holdfast", "holdfast", "--namespace", "kube-system")
		require.ErrorContains(t, err, "add --namespace holdfast-system")
	})
}

// TestOwnSecret checks that the certificate of a Secret is mounted, and trusted in every entry, and
// that the webhook may then change neither Secrets nor the webhook configuration.
func TestOwnSecret(t *testing.T) {
	chart := rendered(t, "1.36.0", "certificates.mode=secret", "certificates.secretName=mine",
		"certificates.caBundle=-----BEGIN CERTIFICATE-----", "clusterAPI.enabled=true", "karpenterNodeClaims.enabled=true")
	require.Subset(t, args(t, chart, webhook), []any{
		"--tls-cert-file=/etc/holdfast/tls/tls.crt", "--tls-key-file=/etc/holdfast/tls/tls.key",
	})
	volume := list(chart[webhook], "spec", "template", "spec", "volumes")[0].(object)
	require.Equal(t, "mine", field(volume, "secret", "secretName"))
	requireNoRule(t, chart["rbac.authorization.k8s.io/v1 Role holdfast-webhook"], "secrets")
	requireNoRule(t, chart["rbac.authorization.k8s.io/v1 ClusterRole holdfast-webhook"], "validatingwebhookconfigurations")
	entries := list(chart["admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration holdfast"], "webhooks")
	require.Len(t, entries, 5)
	for _, entry := range entries {
		require.Equal(t, "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", field(entry.(object), "clientConfig", "caBundle"))
	}
}

// requireNoRule checks that a role has rules, and none for a resource.
func requireNoRule(t *testing.T, role object, resource string) {
	t.Helper()
	require.NotEmpty(t, list(role, "rules"))
	for _, rule := range list(role, "rules") {
		require.NotContains(t, list(rule.(object), "resources"), resource)
	}
}

// TestOwnIssuer checks that no authority is made if there is an issuer.
func TestOwnIssuer(t *testing.T) {
	chart := rendered(t, "1.36.0", "certificates.mode=cert-manager", "certificates.issuerRef.name=mine",
		"certificates.issuerRef.kind=ClusterIssuer")
	want := object{"name": "mine", "kind": "ClusterIssuer"}
	require.Equal(t, want, field(chart["cert-manager.io/v1 Certificate holdfast-webhook"], "spec", "issuerRef"))
	require.NotContains(t, chart, "cert-manager.io/v1 Certificate holdfast-webhook-ca")
	require.NotContains(t, chart, "cert-manager.io/v1 Issuer holdfast-webhook-ca")
}

// TestMonitoringChoices checks the values of the objects for the Prometheus Operator.
func TestMonitoringChoices(t *testing.T) {
	const (
		rule      = "monitoring.coreos.com/v1 PrometheusRule holdfast"
		monitor   = "monitoring.coreos.com/v1 PodMonitor holdfast-agent"
		dashboard = "v1 ConfigMap holdfast-dashboard"
	)
	chart := rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.labels.release=stack", "metrics.agentPort=12000")
	for _, id := range []string{rule, monitor, "monitoring.coreos.com/v1 ServiceMonitor holdfast-webhook"} {
		require.Equal(t, "stack", field(chart[id], "metadata", "labels").(object)["release"], id)
	}
	require.Contains(t, chart, dashboard)
	require.Contains(t, args(t, chart, agent), "--metrics-listen=:12000")
	container := list(chart[agent], "spec", "template", "spec", "containers")[0].(object)
	require.Equal(t, []any{object{"name": "metrics", "containerPort": 12000.0}}, container["ports"])

	chart = rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.rules=false", "monitoring.dashboard=false")
	require.Contains(t, chart, monitor)
	require.NotContains(t, chart, rule)
	require.NotContains(t, chart, dashboard)

	chart = rendered(t, "1.36.0", "metrics.enabled=true")
	require.Contains(t, args(t, chart, webhook), "--metrics-secure")
	require.NotContains(t, chart, monitor)
	require.NotContains(t, chart, rule)
}

// TestWebhookPorts checks that all objects have the ports that values name.
func TestWebhookPorts(t *testing.T) {
	ports := []string{"webhook.port=11443", "webhook.metricsPort=11879", "webhook.healthPort=11880"}
	chart := rendered(t, "1.36.0", ports...)
	require.Subset(t, args(t, chart, webhook), []any{
		"--listen=:11443", "--metrics-listen=:11879", "--health-listen=:11880",
	})
	container := list(chart[webhook], "spec", "template", "spec", "containers")[0].(object)
	require.Equal(t, []any{
		object{"name": "webhook", "containerPort": 11443.0},
		object{"name": "metrics", "containerPort": 11879.0},
		object{"name": "health", "containerPort": 11880.0},
	}, container["ports"])
	// The probes, the Services and the NetworkPolicy name these ports.
	require.Equal(t, "health", field(container, "readinessProbe", "httpGet", "port"))
	require.Equal(t, "health", field(container, "livenessProbe", "httpGet", "port"))
	chart = rendered(t, "1.36.0", append(ports, "metrics.enabled=true")...)
	for id, want := range map[string]object{
		"v1 Service holdfast-webhook":         {"name": "webhook", "port": 9443.0, "targetPort": "webhook"},
		"v1 Service holdfast-webhook-metrics": {"name": "metrics", "port": 11879.0, "targetPort": "metrics"},
	} {
		require.Equal(t, []any{want}, list(chart[id], "spec", "ports"))
	}
}

// TestHostNetwork checks what changes if the webhook uses the network of its nodes: nothing but
// reviews, and metrics over HTTPS, can be reached from other nodes.
func TestHostNetwork(t *testing.T) {
	const network = "networking.k8s.io/v1 NetworkPolicy holdfast-webhook"
	require.Contains(t, rendered(t, "1.36.0"), network)
	chart := rendered(t, "1.36.0", "webhook.hostNetwork=true")
	require.NotContains(t, chart, network)
	pod := field(chart[webhook], "spec", "template", "spec").(object)
	require.Equal(t, true, pod["hostNetwork"])
	require.Equal(t, "ClusterFirstWithHostNet", pod["dnsPolicy"])
	require.Subset(t, args(t, chart, webhook), []any{"--metrics-listen=127.0.0.1:8080", "--health-listen=127.0.0.1:8081"})
	container := list(pod, "containers")[0].(object)
	require.Equal(t, "127.0.0.1", field(container, "readinessProbe", "httpGet", "host"))
	require.Equal(t, "127.0.0.1", field(container, "livenessProbe", "httpGet", "host"))
	require.Equal(t, object{"maxUnavailable": 1.0, "maxSurge": 0.0},
		field(chart[webhook], "spec", "strategy", "rollingUpdate"), "two replicas need the same ports")

	chart = rendered(t, "1.36.0", "webhook.hostNetwork=true", "metrics.enabled=true")
	require.NotContains(t, args(t, chart, webhook), "--metrics-listen=127.0.0.1:8080")
}

// TestPodLabels checks that labels of the user are on the pods, and nowhere else.
func TestPodLabels(t *testing.T) {
	chart := rendered(t, "1.36.0", `agent.podLabels.example\.com/team=yes`, "webhook.podLabels.a=b")
	for id, want := range map[string]object{
		agent:   {"app.kubernetes.io/name": "holdfast-agent", "example.com/team": "yes"},
		webhook: {"app.kubernetes.io/name": "holdfast-webhook", "a": "b"},
	} {
		require.Equal(t, want, field(chart[id], "spec", "template", "metadata", "labels"))
		selector := object{"app.kubernetes.io/name": want["app.kubernetes.io/name"]}
		require.Equal(t, selector, field(chart[id], "spec", "selector", "matchLabels"))
	}
}

// TestPlacement checks that a list of the affinity replaces only the built-in list of that name,
// and that a constraint without a selector is about the webhook.
func TestPlacement(t *testing.T) {
	pod := func(values ...string) object {
		return field(rendered(t, "1.36.0", values...)[webhook], "spec", "template", "spec").(object)
	}
	const spread = "preferredDuringSchedulingIgnoredDuringExecution"
	builtIn := pod()
	require.NotContains(t, builtIn, "topologySpreadConstraints")
	changed := pod("webhook.affinity.podAntiAffinity."+spread+"[0].weight=1",
		"webhook.topologySpreadConstraints[0].topologyKey=zone", "webhook.topologySpreadConstraints[0].maxSkew=1",
		"webhook.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
		"webhook.topologySpreadConstraints[1].topologyKey=rack", "webhook.topologySpreadConstraints[1].maxSkew=2",
		"webhook.topologySpreadConstraints[1].whenUnsatisfiable=DoNotSchedule",
		"webhook.topologySpreadConstraints[1].labelSelector.matchLabels.a=b",
	)
	require.Equal(t, field(builtIn, "affinity", "nodeAffinity"), field(changed, "affinity", "nodeAffinity"))
	require.Equal(t, []any{object{"weight": 1.0}}, field(changed, "affinity", "podAntiAffinity", spread))
	require.Equal(t, []any{
		object{
			"topologyKey": "zone", "maxSkew": 1.0, "whenUnsatisfiable": "ScheduleAnyway",
			"labelSelector": object{"matchLabels": object{"app.kubernetes.io/name": "holdfast-webhook"}},
		},
		object{
			"topologyKey": "rack", "maxSkew": 2.0, "whenUnsatisfiable": "DoNotSchedule",
			"labelSelector": object{"matchLabels": object{"a": "b"}},
		},
	}, changed["topologySpreadConstraints"])
}

// TestMemoryLimit checks limits that fit the memory limit of Go, and those that the chart cannot
// compare.
func TestMemoryLimit(t *testing.T) {
	for _, limit := range []string{"201Mi", "1G", "209715201", "1.5Gi", "1e9", "null"} {
		_, err := template(t, "1.36.0", "webhook.resources.limits.memory="+limit)
		require.NoError(t, err)
	}
	_, err := template(t, "1.36.0", "webhook.resources=null")
	require.NoError(t, err)
}

// TestMissingDefinitions checks that the chart names the definitions that a cluster does not have.
func TestMissingDefinitions(t *testing.T) {
	const monitors = "monitoring.coreos.com/v1/PodMonitor,monitoring.coreos.com/v1/ServiceMonitor"
	for name, c := range map[string]struct{ kinds, value, want string }{
		"no cluster": {"", "monitoring.enabled=true", ""},
		"all":        {"v1/Node," + monitors + ",monitoring.coreos.com/v1/PrometheusRule", "monitoring.enabled=true", ""},
		"none":       {"v1/Node", "monitoring.enabled=true", "its kind PodMonitor"},
		"no rules":   {"v1/Node," + monitors, "monitoring.enabled=true", "its kind PrometheusRule"},
		"not needed": {"v1/Node," + monitors, "monitoring.enabled=true,monitoring.rules=false", ""},
		"disabled":   {"v1/Node", "metrics.enabled=true", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t, "", "template", "holdfast", "holdfast", "--namespace", namespace, "--kube-version", "1.36.0",
				"--api-versions", c.kinds, "--set", c.value)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestAlertChoices checks that the PrometheusRule has all alerts but those that are disabled, and
// that labels change nothing else in them.
func TestAlertChoices(t *testing.T) {
	alerts := func(values ...string) map[string]object {
		found := map[string]object{}
		chart := rendered(t, "1.36.0", append(values, "monitoring.enabled=true")...)
		for _, group := range list(chart["monitoring.coreos.com/v1 PrometheusRule holdfast"], "spec", "groups") {
			require.NotEmpty(t, list(group.(object), "rules"))
			for _, rule := range list(group.(object), "rules") {
				found[group.(object)["name"].(string)+" "+rule.(object)["alert"].(string)] = rule.(object)
			}
		}
		return found
	}
	want := alerts()
	require.NotEmpty(t, want)
	for _, rule := range want {
		rule["labels"].(object)["team"] = "platform"
	}
	require.Equal(t, want, alerts("monitoring.ruleLabels.team=platform"))
	for _, disabled := range []string{
		"holdfast-etcd HoldfastGrantOpen", "holdfast-spc HoldfastSPCInventoryStale",
		"holdfast-spc HoldfastSPCMachineNeverNode",
	} {
		require.Contains(t, want, disabled)
		delete(want, disabled)
	}
	require.Equal(t, want, alerts("monitoring.ruleLabels.team=platform",
		"monitoring.disabledAlerts={HoldfastGrantOpen,HoldfastSPCInventoryStale,HoldfastSPCMachineNeverNode}"))
}

// TestScrapeTimes checks the times of both monitors.
func TestScrapeTimes(t *testing.T) {
	chart := rendered(t, "1.36.0", "monitoring.enabled=true", "monitoring.interval=1m30s", "monitoring.scrapeTimeout=5s")
	for id, endpoints := range map[string]string{
		"monitoring.coreos.com/v1 PodMonitor holdfast-agent":       "podMetricsEndpoints",
		"monitoring.coreos.com/v1 ServiceMonitor holdfast-webhook": "endpoints",
	} {
		require.Subset(t, list(chart[id], "spec", endpoints)[0], object{"interval": "1m30s", "scrapeTimeout": "5s"})
	}
}

func TestLint(t *testing.T) {
	out, err := helm(t, "", "lint", "--strict", "--namespace", namespace, "holdfast")
	require.NoError(t, err)
	require.Contains(t, out, "1 chart(s) linted, 0 chart(s) failed")
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
	require.Equal(t, 23, count)
}

// TestReadme checks that the README of the chart lists every value with its default, and no others.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("holdfast/values.yaml")
	require.NoError(t, err)
	var values object
	require.NoError(t, yaml.Unmarshal(text, &values))
	page, err := os.ReadFile("holdfast/README.md")
	require.NoError(t, err)
	listed := map[string]string{}
	for line := range strings.Lines(string(page)) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && strings.HasPrefix(line, "| `") {
			listed[strings.Trim(cells[0], "| `")] = strings.Trim(cells[1], "`")
		}
	}
	require.Equal(t, leaves(t, "", values), listed)
}

// leaves returns the values without fields of their own, as JSON, by their path. The fields of
// resources belong to Kubernetes.
func leaves(t *testing.T, prefix string, values object) map[string]string {
	t.Helper()
	found := map[string]string{}
	for key, value := range values {
		inner, isObject := value.(object)
		if isObject && len(inner) > 0 && key != "resources" {
			maps.Copy(found, leaves(t, prefix+key+".", inner))
			continue
		}
		text, err := yaml.Marshal(value)
		require.NoError(t, err)
		asJSON, err := yaml.YAMLToJSON(text)
		require.NoError(t, err)
		found[prefix+key] = strings.Trim(string(asJSON), `"`)
	}
	return found
}
