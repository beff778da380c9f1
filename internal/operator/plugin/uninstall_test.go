package plugin

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// hookAnnotation is the hook of Holdfast on a Machine.
const hookAnnotation = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/holdfast"

// uninstallFixture is an API server with Holdfast and all its components, the controllers that
// delete what depends on other objects, and the Job's service account.
type uninstallFixture struct {
	*apiserver.Server
	root, job string
}

// testUninstall removes Holdfast in each way from a server that has it.
func testUninstall(t *testing.T, server *apiserver.Server) {
	root, err := process.RepositoryRoot()
	require.NoError(t, err)
	apiserver.InstallMachines(t, server)
	_, err = server.StartControllers("garbage-collector-controller", "namespace-controller", "job-controller")
	require.NoError(t, err)
	f := &uninstallFixture{Server: server, root: root}
	t.Run("command", func(t *testing.T) { uninstallByCommand(t, f) })
	f.deleteObjects(t)
	t.Run("helm", func(t *testing.T) { uninstallByHelm(t, f) })
}

// install installs all components that have objects of their own, and the account of the Job.
func (f *uninstallFixture) install(t *testing.T) {
	t.Helper()
	for _, file := range []string{"cluster-api/rbac.yaml", "cluster-api/policy.yaml", "karpenter-nodeclaims/rbac.yaml"} {
		_, err := f.Kubectl(t.Context(), "apply", "-f", filepath.Join(f.root, "manifests/components", file))
		require.NoError(t, err)
	}
	// The Job itself is created later, so that its namespace has a token for the test only.
	_, err := f.Kubectl(t.Context(), "apply", "-k", filepath.Join(f.root, "manifests/uninstall"))
	require.NoError(t, err)
	account, err := f.ServiceAccountConfig(t.Context(), "holdfast-uninstall", "holdfast-uninstall", "")
	require.NoError(t, err)
	f.job = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, apiserver.WriteKubeconfig(f.job, account))
}

// deleteObjects deletes what a test has made and an uninstallation leaves.
func (f *uninstallFixture) deleteObjects(t *testing.T) {
	t.Helper()
	for _, objects := range []string{
		"nodes --all", "machines --all", "clusterrolebinding mine", "namespaces holdfast-system holdfast-uninstall",
		"customresourcedefinitions etcdclusters.holdfast.dev etcdobservations.holdfast.dev",
	} {
		_, err := f.Kubectl(t.Context(), append([]string{"delete", "--ignore-not-found"}, strings.Fields(objects)...)...)
		require.NoError(t, err)
	}
}

// run runs the command of the Job.
func (f *uninstallFixture) run(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	return runTyped(t.Context(), t, "", append([]string{"--kubeconfig=" + f.job, "uninstall"}, args...)...)
}

// addObjects adds a held node, an etcd node, a node with keys of people, and Machines.
func (f *uninstallFixture) addObjects(t *testing.T) {
	t.Helper()
	_, _, err := f.AddNode(t.Context(), apiserver.NodeSpec{Name: "held", Ready: true}) // by the policy
	require.NoError(t, err)
	for name, spec := range map[string]apiserver.NodeSpec{
		"etcd": {Ready: true, Annotations: map[string]string{
			"holdfast.dev/hold": `{"state":"released","reason":"FirstSeen"}`, "holdfast.dev/etcd": "[]",
			"holdfast.dev/marks": "karpenter.sh/do-not-disrupt", "karpenter.sh/do-not-disrupt": "true", "mine": "stays",
		}, Labels: map[string]string{"holdfast.dev/etcd-member": "true"}},
		"people": {Ready: true, Annotations: map[string]string{
			"holdfast.dev/hold": `{"state":"released","reason":"FirstSeen"}`, "holdfast.dev/keep-cordoned": "x",
		}, Labels: map[string]string{"holdfast.dev/drain-guard": "never"}},
	} {
		spec.Name = name
		_, err := apiserver.RegisterNode(t.Context(), f.Admin(), spec)
		require.NoError(t, err)
	}
	_, err = f.Kubectl(t.Context(),
		"create", "clusterrolebinding", "mine", "--clusterrole=holdfast-breakglass", "--user=a")
	require.NoError(t, err)
	// Its CustomResourceDefinition stays until it is gone.
	create(t, f.Server, `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"abc"},"spec":{}}`)
	for name, annotations := range map[string]string{
		"hooked": `{"` + hookAnnotation + `":"holdfast","a":"b"}`,
		"other":  `{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup":""}`,
	} {
		create(t, f.Server, `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Machine",
			"metadata":{"namespace":"default","name":"`+name+`","annotations":`+annotations+`}}`)
	}
}

// remaining returns the objects of Holdfast, by kind/name, without those of the Job.
func (f *uninstallFixture) remaining(t *testing.T) []string {
	t.Helper()
	kinds := "validatingadmissionpolicies," +
		"validatingadmissionpolicybindings,validatingwebhookconfigurations,clusterroles,clusterrolebindings,roles," +
		"rolebindings,flowschemas,prioritylevelconfigurations,customresourcedefinitions,namespaces,daemonsets,deployments"
	if f.BornHeld() {
		kinds = "mutatingadmissionpolicies,mutatingadmissionpolicybindings," + kinds
	}
	out, err := f.Kubectl(t.Context(), "get", "-A", "-o", "name", kinds)
	require.NoError(t, err)
	var found []string
	for name := range strings.FieldsSeq(out) {
		if strings.Contains(name, "holdfast") && !strings.Contains(name, "/holdfast-uninstall") {
			found = append(found, name)
		}
	}
	return found
}

// uninstallByCommand runs the command with the rights of the Job: as a dry run, and again and again
// until nothing is left. First a pod of the webhook is on a node without a kubelet, so it never
// ends. The hooks of Machines are removed, and the Nodes are cleaned all the same.
func uninstallByCommand(t *testing.T, f *uninstallFixture) {
	f.install(t)
	compare := func(name, out string) {
		if f.BornHeld() { // the golden files contain the policy
			compareUninstall(t, name, out)
		}
	}
	f.addObjects(t)
	before := f.remaining(t)
	code, changes := f.run(t, "--dry-run")
	require.Equal(t, cli.ExitSuccess, code, changes)
	require.Equal(t, before, f.remaining(t), "a dry run deleted something")
	compare("uninstall-dry-run", changes)

	f.withoutNamespaces(t, func() {
		code, out := f.run(t, "--yes")
		require.Equal(t, cli.ExitFailure, code)
		const advice = " namespaces (holdfast-system); ask an administrator of the cluster for it\n"
		require.Equal(t, "kubectl holdfast: you have no permission to delete"+advice+
			"you have no permission to get"+advice, out)
		require.Equal(t, before, f.remaining(t), "the command stopped halfway")
	})

	f.deleteMachine(t)
	for _, mode := range []string{"--dry-run", "--yes"} {
		code, out := f.run(t, mode)
		require.Equal(t, cli.ExitFailure, code, out)
		require.Contains(t, out, "machine default/waiting is being deleted and has the hook of Holdfast: ")
		require.Equal(t, before, f.remaining(t), "the end of the machine waits for a review")
	}
	f.endMachine(t)

	f.addWebhookPod(t, "etcd")
	code, out := f.run(t, "--yes", "--keep-crd", "--timeout=10s")
	require.Equal(t, cli.ExitFailure, code, out)
	compare("uninstall-dead-node", out)
	require.NotContains(t, f.remaining(t), "clusterrolebinding.rbac.authorization.k8s.io/holdfast-webhook-machines",
		"a webhook that still runs can restore the hook")
	f.requireClean(t)

	// Cluster API ends the machine, and its Node is deleted.
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	require.NoError(t, f.Client().CoreV1().Pods(guard.Namespace).Delete(t.Context(), "webhook", now))
	f.deleteMachine(t)
	code, out = f.run(t, "--yes", "--keep-crd", "--timeout=1m", "--end-waiting-machines")
	require.Equal(t, cli.ExitSuccess, code, out)
	compare("uninstall-keep-crd", out)
	require.Equal(t, []string{
		"customresourcedefinition.apiextensions.k8s.io/etcdclusters.holdfast.dev",
		"customresourcedefinition.apiextensions.k8s.io/etcdobservations.holdfast.dev",
	}, f.remaining(t))
	f.endMachine(t)
	f.requireClean(t)

	code, out = f.run(t, "--yes", "--timeout=1m")
	require.Equal(t, cli.ExitSuccess, code, out)
	compare("uninstall-again", out)
	require.Empty(t, f.remaining(t))
}

// deleteMachine deletes a Machine with the hook. Its controller does not run, so it stays.
func (f *uninstallFixture) deleteMachine(t *testing.T) {
	t.Helper()
	create(t, f.Server, `{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Machine",
		"metadata":{"namespace":"default","name":"waiting","finalizers":["machine.cluster.x-k8s.io"],
		"annotations":{"`+hookAnnotation+`":"holdfast"}}}`)
	_, err := f.Kubectl(t.Context(), "delete", "machine", "waiting", "--wait=false")
	require.NoError(t, err)
}

// endMachine ends the Machine of deleteMachine, as its controller does.
func (f *uninstallFixture) endMachine(t *testing.T) {
	t.Helper()
	_, err := f.Kubectl(t.Context(), "patch", "machine", "waiting", "--type=merge",
		"-p", `{"metadata":{"finalizers":null}}`)
	require.NoError(t, err)
}

// addWebhookPod adds a pod of the webhook on a node that no kubelet runs.
func (f *uninstallFixture) addWebhookPod(t *testing.T, node string) {
	t.Helper()
	webhook, err := f.Client().AppsV1().Deployments(guard.Namespace).Get(t.Context(), "holdfast-webhook",
		metav1.GetOptions{})
	require.NoError(t, err)
	_, err = f.Client().CoreV1().Pods(guard.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "webhook", OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(webhook, appsv1.SchemeGroupVersion.WithKind("Deployment")),
			},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "webhook", Image: "webhook"}}, NodeName: node,
			ServiceAccountName: "holdfast-webhook",
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// withoutNamespaces calls do while the Job has no right to namespaces, which it needs last.
func (f *uninstallFixture) withoutNamespaces(t *testing.T, do func()) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", f.job)
	require.NoError(t, err)
	job, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	roles := f.Client().RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), "holdfast-uninstall-rest", metav1.GetOptions{})
	require.NoError(t, err)
	setRules := func(rules []rbacv1.PolicyRule, permits bool) {
		role.Rules = rules
		role, err = roles.Update(t.Context(), role, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the authorizer reads roles through a watch
			review := &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: "delete", Resource: "namespaces", Name: guard.Namespace,
				}},
			}
			review, err := job.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			return err == nil && review.Status.Allowed == permits
		}, 20*time.Second, 20*time.Millisecond)
	}
	all := role.Rules
	setRules(slices.DeleteFunc(slices.Clone(all), func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "namespaces")
	}), false)
	do()
	setRules(all, true)
}

// requireClean checks that nothing of Holdfast is on Nodes and Machines, but what people wrote.
func (f *uninstallFixture) requireClean(t *testing.T) {
	t.Helper()
	nodes, err := f.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range nodes.Items {
		n := &nodes.Items[i]
		require.False(t, n.Spec.Unschedulable, n.Name)
		for _, key := range []string{"holdfast.dev/hold", "holdfast.dev/etcd", "karpenter.sh/do-not-disrupt"} {
			require.NotContains(t, n.Annotations, key, n.Name)
		}
		require.NotContains(t, n.Labels, "holdfast.dev/etcd-member", n.Name)
		for _, c := range n.Status.Conditions {
			require.False(t, c.Type == corev1.NodeNetworkUnavailable || c.Type == "NetworkHeld", n.Name)
		}
	}
	for name, want := range map[string]string{
		"hooked": `{"a":"b"}`, "other": `{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup":""}`,
	} {
		got, err := f.Kubectl(t.Context(), "get", "machines", name, "-o", "jsonpath={.metadata.annotations}")
		require.NoError(t, err)
		require.JSONEq(t, want, got)
	}
}

// compareUninstall compares an output without versions, addresses, and lines about waiting.
func compareUninstall(t *testing.T, name, out string) {
	t.Helper()
	for pattern, word := range map[string]string{
		`https://[0-9.:]+`: "SERVER", `(?m)^.*waiting until.*\n`: "",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, word)
	}
	compareOutput(t, name+".txt", out)
}

// testUninstallRights runs the command as a user who may not.
func testUninstallRights(t *testing.T, f *changeFixture) {
	code, out := f.run(t, reader, "", "uninstall", "--yes")
	require.Equal(t, cli.ExitFailure, code)
	require.Contains(t, out, "you have no permission to list validatingwebhookconfigurations.admissionregistration.")
	require.Contains(t, out, "you have no permission to patch nodes/status")
}
