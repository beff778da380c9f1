package manifests_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testSecurityContexts checks the permissions of the pods on their nodes.
func testSecurityContexts(t *testing.T, all []string) {
	no, yes, root, user := false, true, int64(0), int64(65532)
	every := []corev1.Capability{"ALL"}
	confined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	agent := one[appsv1.DaemonSet](t, all, "DaemonSet", "holdfast-agent").Spec.Template.Spec
	require.Nil(t, agent.SecurityContext)
	require.Len(t, agent.Containers, 1)
	require.Equal(t, &corev1.SecurityContext{
		RunAsUser: &root, ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no, SeccompProfile: confined,
		Capabilities:    &corev1.Capabilities{Drop: every, Add: []corev1.Capability{"SYS_PTRACE", "DAC_READ_SEARCH"}},
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined},
		SELinuxOptions:  &corev1.SELinuxOptions{Type: "spc_t"},
	}, agent.Containers[0].SecurityContext)
	require.True(t, agent.HostNetwork)
	require.False(t, agent.HostPID || agent.HostIPC)
	directory, hostToContainer := corev1.HostPathDirectory, corev1.MountPropagationHostToContainer
	require.Equal(t, []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: &directory},
	}}}, agent.Volumes)
	require.Equal(t, []corev1.VolumeMount{
		{Name: "host", MountPath: "/host", ReadOnly: true, MountPropagation: &hostToContainer},
	}, agent.Containers[0].VolumeMounts)

	webhook := one[appsv1.Deployment](t, all, "Deployment", "holdfast-webhook").Spec.Template.Spec
	require.Equal(t, &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, SeccompProfile: confined,
	}, webhook.SecurityContext)
	require.Len(t, webhook.Containers, 1)
	require.Equal(t, &corev1.SecurityContext{
		ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: every},
	}, webhook.Containers[0].SecurityContext)
	require.False(t, webhook.HostNetwork || webhook.HostPID || webhook.HostIPC)
}

// testPodSecurity compares the pods with the strictest profile of Pod Security. The webhook
// causes no warning, and the agent only those that docs/permissions.md explains.
func testPodSecurity(t *testing.T, server *apiserver.Server) {
	const namespace = "strict"
	warn := map[string]string{"pod-security.kubernetes.io/warn": "restricted"}
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: warn}}
	_, err := server.Client().CoreV1().Namespaces().Create(t.Context(), strict, metav1.CreateOptions{})
	require.NoError(t, err)
	var warned warnings
	config := server.Admin()
	config.WarningHandler = &warned
	client, dry := clientOf(t, config).AppsV1(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

	webhook := one[appsv1.Deployment](t, shipped(t), "Deployment", "holdfast-webhook")
	webhook.Namespace = namespace
	_, err = client.Deployments(namespace).Create(t.Context(), &webhook, dry)
	require.NoError(t, err)
	require.Empty(t, warned)

	agent := one[appsv1.DaemonSet](t, shipped(t), "DaemonSet", "holdfast-agent")
	agent.Namespace = namespace
	_, err = client.DaemonSets(namespace).Create(t.Context(), &agent, dry)
	require.NoError(t, err)
	require.Len(t, warned, 1)
	_, against, _ := strings.Cut(warned[0], ": ")
	expected := []string{
		`forbidden AppArmor profile (container "agent" must not set AppArmor profile type to "Unconfined")`,
		`host namespaces (hostNetwork=true)`,
		`probe or lifecycle host (container "agent" uses probe or lifecycle host "127.0.0.1")`,
		`seLinuxOptions (container "agent" set forbidden securityContext.seLinuxOptions: type "spc_t")`,
		`unrestricted capabilities (container "agent" must not include "DAC_READ_SEARCH", "SYS_PTRACE"` +
			` in securityContext.capabilities.add)`,
		`restricted volume types (volume "host" uses restricted volume type "hostPath")`,
		`runAsNonRoot != true (pod or container "agent" must set securityContext.runAsNonRoot=true)`,
		`runAsUser=0 (container "agent" must not set runAsUser=0)`,
	}
	if apiserver.Minor(t) < 34 { // The check is newer.
		expected = slices.DeleteFunc(expected, func(check string) bool { return strings.HasPrefix(check, "probe") })
	}
	require.Equal(t, expected, strings.Split(strings.ReplaceAll(against, "), ", ")\n"), "\n"))
}

// warnings collects the warnings of the API server.
type warnings []string

var _ rest.WarningHandler = (*warnings)(nil)

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestPermissionsAreExplained checks that the DaemonSet and docs/permissions.md explain each
// permission of the agent.
func TestPermissionsAreExplained(t *testing.T) {
	pod := one[appsv1.DaemonSet](t, shipped(t), "DaemonSet", "holdfast-agent").Spec.Template.Spec
	names := map[string]string{ // the name in the page, by the line of the manifest
		"hostNetwork: true": "`hostNetwork`", "runAsUser: 0": "`runAsUser: 0`",
		"appArmorProfile: {type: Unconfined}": "`appArmorProfile: Unconfined`, `seLinuxOptions: spc_t`",
	}
	for _, capability := range pod.Containers[0].SecurityContext.Capabilities.Add {
		names["- "+string(capability)] = "`" + string(capability) + "`"
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		names["- {name: "+mount.Name+", mountPath: "+mount.MountPath] = "`" + mount.MountPath + "`"
	}
	shipped, err := os.ReadFile("base/agent.yaml")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/permissions.md")
	require.NoError(t, err)
	lines := strings.Split(string(shipped), "\n")
	for line, name := range names {
		require.Contains(t, string(page), "| "+name+" |")
		explained := false
		for i, text := range lines {
			if strings.HasPrefix(strings.TrimSpace(text), line) {
				explained = strings.HasPrefix(strings.TrimSpace(lines[i-1]), "# ")
			}
		}
		require.True(t, explained, "no comment above %q", line)
	}
}

// TestPermissionsOfComponents checks that docs/permissions.md has what the components for machines
// permit the webhook.
func TestPermissionsOfComponents(t *testing.T) {
	page, err := os.ReadFile("../docs/permissions.md")
	require.NoError(t, err)
	for component, role := range map[string]string{
		"cluster-api": "holdfast-webhook-machines", "karpenter-nodeclaims": "holdfast-webhook-nodeclaims",
	} {
		all := kustomized(t, withComponent(t, ".", component))
		for _, rule := range one[rbacv1.ClusterRole](t, all, "ClusterRole", role).Rules {
			if rule.APIGroups[0] == corev1.GroupName {
				continue // events
			}
			text := fmt.Sprintf("`%s.%s [] %s`", rule.Resources[0], rule.APIGroups[0], rule.Verbs)
			require.Contains(t, string(page), text)
		}
	}
}

// TestPodVerbs checks that no role of the webhook has a way to a pod that the policy
// holdfast-guards does not review: a change of a pod, a subresource, or an object from which a
// controller makes pods.
func TestPodVerbs(t *testing.T) {
	components, err := filepath.Glob("components/*/rbac.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, components)
	var rules []rbacv1.PolicyRule
	for _, file := range append(components, "base/rbac/webhook.yaml") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			rules = append(rules, rulesOf(t, document)...)
		}
	}
	known := []string{
		"nodes", "nodes/status", "etcdclusters", "etcdclusters/status", "etcdobservations",
		"validatingwebhookconfigurations", "secrets",
		"leases", "configmaps", "events", "machines", "nodeclaims", "subjectaccessreviews", "tokenreviews",
	}
	isFound := false
	for _, rule := range rules {
		if slices.Equal(rule.Resources, []string{"pods"}) {
			require.Equal(t, []string{"get", "list", "watch", "create", "delete"}, rule.Verbs)
			isFound = true
			continue
		}
		require.Subset(t, known, rule.Resources)
		require.NotContains(t, rule.Verbs, "*")
	}
	require.True(t, isFound)
}

// rulesOf returns the rules of a role, and none of another object.
func rulesOf(t *testing.T, document string) []rbacv1.PolicyRule {
	t.Helper()
	var role rbacv1.ClusterRole
	require.NoError(t, yaml.Unmarshal([]byte(document), &role))
	return role.Rules
}

// testRoles checks what RBAC permits to each service account. A row has the form
// "verb resource[/subresource] [namespace/][name]".
func testRoles(t *testing.T, server *apiserver.Server) {
	for account, rows := range map[string]struct{ may, mayNot []string }{
		"holdfast-agent": {
			may: []string{
				"get nodes", "list nodes", "watch nodes", "patch nodes", "patch nodes/status",
				"get etcdclusters.holdfast.dev", "list etcdclusters.holdfast.dev", "watch etcdclusters.holdfast.dev",
				"get etcdobservations.holdfast.dev", "list etcdobservations.holdfast.dev",
				"watch etcdobservations.holdfast.dev", "update etcdobservations.holdfast.dev",
				"create events default/", "patch events default/",
				"list configmaps holdfast-system/", "watch configmaps holdfast-system/",
			},
			mayNot: []string{
				"delete nodes", "create nodes", "update nodes", "update nodes/status", "patch etcdclusters.holdfast.dev",
				"create etcdclusters.holdfast.dev", "delete etcdclusters.holdfast.dev", "breakglass etcdclusters.holdfast.dev",
				"patch etcdclusters.holdfast.dev/status", "create etcdobservations.holdfast.dev",
				"delete etcdobservations.holdfast.dev", "patch etcdobservations.holdfast.dev",
				"get secrets holdfast-system/holdfast-webhook-tls", "list pods", "get configmaps kube-system/x",
				"create configmaps holdfast-system/", "create events kube-system/",
				"create leases.coordination.k8s.io holdfast-system/",
			},
		},
		"holdfast-webhook": {
			may: []string{
				"get nodes", "list nodes", "watch nodes", "patch nodes", "patch nodes/status",
				"get etcdclusters.holdfast.dev", "list etcdclusters.holdfast.dev", "watch etcdclusters.holdfast.dev",
				"create etcdclusters.holdfast.dev", "patch etcdclusters.holdfast.dev", "patch etcdclusters.holdfast.dev/status",
				"get etcdobservations.holdfast.dev", "list etcdobservations.holdfast.dev",
				"watch etcdobservations.holdfast.dev", "create etcdobservations.holdfast.dev",
				"delete etcdobservations.holdfast.dev",
				"create events default/", "create secrets holdfast-system/", "get secrets holdfast-system/holdfast-webhook-tls",
				"watch secrets holdfast-system/holdfast-webhook-tls", "update secrets holdfast-system/holdfast-webhook-tls",
				"create leases.coordination.k8s.io holdfast-system/",
				"update leases.coordination.k8s.io holdfast-system/holdfast-webhook",
				"create configmaps holdfast-system/", "update configmaps holdfast-system/holdfast-spc-inventory",
				"update configmaps holdfast-system/holdfast-spc-inventory-status",
				"update configmaps holdfast-system/holdfast-spc-inventory-groups",
				"update configmaps holdfast-system/holdfast-spc-inventory-0",
				"update configmaps holdfast-system/holdfast-spc-inventory-31",
				"get configmaps holdfast-system/holdfast-born-held", "delete configmaps holdfast-system/holdfast-born-held",
				"get validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
				"watch validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
				"create pods holdfast-system/", "delete pods holdfast-system/x", "watch pods holdfast-system/",
				"patch validatingwebhookconfigurations.admissionregistration.k8s.io /holdfast",
			},
			mayNot: []string{
				"delete nodes", "create nodes", "update nodes", "update nodes/status",
				"delete etcdclusters.holdfast.dev", "breakglass etcdclusters.holdfast.dev",
				"update etcdobservations.holdfast.dev", "patch etcdobservations.holdfast.dev",
				"patch secrets holdfast-system/holdfast-webhook-tls",
				"list leases.coordination.k8s.io holdfast-system/holdfast-webhook",
				"patch leases.coordination.k8s.io holdfast-system/holdfast-webhook",
				"get secrets holdfast-system/other", "list secrets holdfast-system/", "get secrets kube-system/x",
				"patch validatingwebhookconfigurations.admissionregistration.k8s.io /other",
				"patch validatingadmissionpolicies.admissionregistration.k8s.io /holdfast-nodes",
				"delete configmaps holdfast-system/other", "get configmaps kube-system/x", "patch pods holdfast-system/x",
				"update configmaps holdfast-system/kube-root-ca.crt", "patch configmaps holdfast-system/kube-root-ca.crt",
				"update configmaps holdfast-system/holdfast-born-held", "list configmaps holdfast-system/",
				"patch configmaps holdfast-system/holdfast-spc-inventory",
				"create pods/eviction holdfast-system/x", "create pods/exec holdfast-system/x", "create pods kube-system/",
				"delete pods default/x", "list pods", "deletecollection pods holdfast-system/", "update pods holdfast-system/x",
			},
		},
	} {
		for _, row := range rows.may {
			require.True(t, allowed(t, server, account, row), "%s must be allowed to %s", account, row)
		}
		for _, row := range rows.mayNot {
			require.False(t, allowed(t, server, account, row), "%s must not be allowed to %s", account, row)
		}
	}
}

func allowed(t *testing.T, server *apiserver.Server, account, row string) bool {
	t.Helper()
	fields := append(strings.Fields(row), "")
	resource, subresource, _ := strings.Cut(fields[1], "/")
	resource, group, _ := strings.Cut(resource, ".")
	namespace, name, _ := strings.Cut(fields[2], "/")
	reviews := server.Client().AuthorizationV1().SubjectAccessReviews()
	review, err := reviews.Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:holdfast-system:" + account,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:holdfast-system", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: fields[0], Group: group, Resource: resource, Subresource: subresource,
				Namespace: namespace, Name: name,
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	return review.Status.Allowed
}

// testFlowControl reads the queue of a request from the header of its response. The agents'
// requests for Nodes and Events have a queue of their own, and those for EtcdClusters and
// EtcdObservations another one. The requests of the webhook are in neither.
func testFlowControl(t *testing.T, server *apiserver.Server) {
	levels := server.Client().FlowcontrolV1().PriorityLevelConfigurations()
	names, queueLengths := map[string]string{}, map[string]int32{"holdfast-agents": 3 * 15000}
	for _, name := range []string{"holdfast-agents", "holdfast-observations"} {
		level, err := levels.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		names[string(level.UID)] = name
		require.GreaterOrEqual(t, level.Spec.Limited.LimitResponse.Queuing.QueueLengthLimit, queueLengths[name])
	}
	for _, row := range []struct{ account, verb, path, level string }{
		{"holdfast-agent", http.MethodGet, "/api/v1/nodes", "holdfast-agents"},
		{"holdfast-agent", http.MethodPatch, "/api/v1/nodes/none", "holdfast-agents"},
		{"holdfast-agent", http.MethodPatch, "/api/v1/nodes/none/status", "holdfast-agents"},
		{"holdfast-agent", http.MethodPost, "/api/v1/namespaces/default/events", "holdfast-agents"},
		{"holdfast-agent", http.MethodPut, observationPath + "/none", "holdfast-observations"},
		{"holdfast-agent", http.MethodGet, clusterPath, "holdfast-observations"},
		{"holdfast-webhook", http.MethodGet, "/api/v1/nodes", ""},
		{"holdfast-webhook", http.MethodGet, observationPath + "/none", ""},
	} {
		config, err := server.ServiceAccountConfig(t.Context(), "holdfast-system", row.account, "")
		require.NoError(t, err)
		client, err := rest.HTTPClientFor(config)
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the API server reads its levels through a watch
			request, err := http.NewRequestWithContext(t.Context(), row.verb, config.Host+row.path, nil)
			require.NoError(t, err)
			response, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			queue := response.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
			return queue != "" && names[queue] == row.level
		}, soon, poll, "%+v", row)
	}
}
