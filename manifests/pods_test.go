package manifests_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// TestPodsHaveNoMorePowerThanTheyUse pins what the pods may do, in every overlay.
func TestPodsHaveNoMorePowerThanTheyUse(t *testing.T) {
	no, yes, root, nobody := false, true, int64(0), int64(65532)
	confined := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	for _, dir := range append(overlays(t), ".") {
		shipped := kustomized(t, dir)
		agent := one[appsv1.DaemonSet](t, shipped, "DaemonSet", "holdfast-agent").Spec.Template.Spec
		require.Nil(t, agent.SecurityContext)
		require.Len(t, agent.Containers, 1)
		require.Equal(t, &corev1.SecurityContext{
			RunAsUser: &root, ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no, SeccompProfile: confined,
			Capabilities:    &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"SYS_PTRACE", "DAC_READ_SEARCH"}},
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

		webhook := one[appsv1.Deployment](t, shipped, "Deployment", "holdfast-webhook").Spec.Template.Spec
		require.Equal(t, &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &nobody, RunAsGroup: &nobody, FSGroup: &nobody, SeccompProfile: confined,
		}, webhook.SecurityContext)
		require.Len(t, webhook.Containers, 1)
		require.Equal(t, &corev1.SecurityContext{
			ReadOnlyRootFilesystem: &yes, AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}, webhook.Containers[0].SecurityContext)
		require.False(t, webhook.HostNetwork || webhook.HostPID || webhook.HostIPC)
	}
}

// testPodSecurity asks Pod Security's strictest profile. It has nothing against the webhook, and against the agent what is
// explained and nothing else.
func testPodSecurity(t *testing.T, server *testenv.APIServer) {
	const namespace = "strict"
	_, err := server.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/warn": "restricted"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	var heard warnings
	config := server.Admin()
	config.WarningHandler = &heard
	client, dry := clientOf(t, config).AppsV1(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

	webhook := one[appsv1.Deployment](t, built(t), "Deployment", "holdfast-webhook")
	webhook.Namespace = namespace
	_, err = client.Deployments(namespace).Create(t.Context(), &webhook, dry)
	require.NoError(t, err)
	require.Empty(t, heard)

	agent := one[appsv1.DaemonSet](t, built(t), "DaemonSet", "holdfast-agent")
	agent.Namespace = namespace
	_, err = client.DaemonSets(namespace).Create(t.Context(), &agent, dry)
	require.NoError(t, err)
	require.Len(t, heard, 1)
	_, against, _ := strings.Cut(heard[0], ": ")
	require.Equal(t, []string{
		`forbidden AppArmor profile (container "agent" must not set AppArmor profile type to "Unconfined")`,
		`host namespaces (hostNetwork=true)`,
		`probe or lifecycle host (container "agent" uses probe or lifecycle host "127.0.0.1")`,
		`seLinuxOptions (container "agent" set forbidden securityContext.seLinuxOptions: type "spc_t")`,
		`unrestricted capabilities (container "agent" must not include "DAC_READ_SEARCH", "SYS_PTRACE" in securityContext.capabilities.add)`,
		`restricted volume types (volume "host" uses restricted volume type "hostPath")`,
		`runAsNonRoot != true (pod or container "agent" must set securityContext.runAsNonRoot=true)`,
		`runAsUser=0 (container "agent" must not set runAsUser=0)`,
	}, strings.Split(strings.ReplaceAll(against, "), ", ")\n"), "\n"))
}

// warnings is what the API server warns of.
type warnings []string

var _ rest.WarningHandler = (*warnings)(nil)

func (w *warnings) HandleWarningHeader(_ int, _, text string) { *w = append(*w, text) }

// TestEveryPowerIsExplained: whoever reads the DaemonSet, or the page about operations, learns what each power is for.
func TestEveryPowerIsExplained(t *testing.T) {
	pod := one[appsv1.DaemonSet](t, built(t), "DaemonSet", "holdfast-agent").Spec.Template.Spec
	powers := map[string]string{ // by the line that gives it, what the page calls it
		"hostNetwork: true": "`hostNetwork`", "runAsUser: 0": "`runAsUser: 0`",
		"appArmorProfile: {type: Unconfined}": "`appArmorProfile: Unconfined`, `seLinuxOptions: spc_t`",
	}
	for _, capability := range pod.Containers[0].SecurityContext.Capabilities.Add {
		powers["- "+string(capability)] = "`" + string(capability) + "`"
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		powers["- {name: "+mount.Name+", mountPath: "+mount.MountPath] = "`" + mount.MountPath + "`"
	}
	shipped, err := os.ReadFile("base/agent.yaml")
	require.NoError(t, err)
	page, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	lines := strings.Split(string(shipped), "\n")
	for given, called := range powers {
		require.Contains(t, string(page), "| "+called+" |")
		explained := false
		for i, line := range lines {
			if strings.HasPrefix(strings.TrimSpace(line), given) {
				explained = strings.HasPrefix(strings.TrimSpace(lines[i-1]), "# ")
			}
		}
		require.True(t, explained, "no comment above %q", given)
	}
}
