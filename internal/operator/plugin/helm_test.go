package plugin

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// uninstallByHelm installs the chart with the Job of helm uninstall, and uninstalls it with the
// real helm. No kubelet runs, so the test takes the place of the pod: it runs the command of the
// Job with the rights of the Job. If the Job does not end, Holdfast stays.
func uninstallByHelm(t *testing.T, f *uninstallFixture) {
	out, err := f.helm(t, "install", "holdfast", filepath.Join(f.root, "charts/holdfast"), "--create-namespace",
		"--set=uninstall.enabled=true")
	require.NoError(t, err, out)
	require.NoError(t, f.WaitForPolicies(t.Context()))
	f.addObjects(t)
	f.addGuardPod(t)
	installed := f.remaining(t)

	out, err = f.helm(t, "uninstall", "holdfast", "--timeout=2s")
	require.Error(t, err, out)
	require.Equal(t, installed, f.remaining(t), "helm deleted objects although the Job has not ended")
	f.requireNoRights(t)
	failed := f.jobPod(t, "")

	var uninstalled errgroup.Group
	uninstalled.Go(func() error {
		out, err := f.helm(t, "uninstall", "holdfast", "--timeout=4m")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	pod := f.jobPod(t, failed.Name)
	require.Equal(t, "holdfast-uninstall", pod.Spec.ServiceAccountName)
	account, err := f.ServiceAccountConfig(t.Context(), guard.Namespace, pod.Spec.ServiceAccountName, "")
	require.NoError(t, err)
	f.job = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, apiserver.WriteKubeconfig(f.job, account))
	args := pod.Spec.Containers[0].Args
	require.Equal(t, "uninstall", args[0])
	code, printed := f.run(t, append(args[1:], "--timeout=1m")...)
	require.Equal(t, cli.ExitSuccess, code, printed)
	if f.BornHeld() { // The output names the policy.
		compareUninstall(t, "uninstall-before-helm", printed)
	}
	f.requireClean(t)
	pod.Status.Phase = corev1.PodSucceeded
	_, err = f.Client().CoreV1().Pods(guard.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, uninstalled.Wait())
	require.Equal(t, []string{
		"customresourcedefinition.apiextensions.k8s.io/etcdclusters.holdfast.dev",
		"customresourcedefinition.apiextensions.k8s.io/etcdobservations.holdfast.dev", "namespace/holdfast-system",
	}, f.remaining(t))
	f.requireNoRights(t)
	_, err = f.Client().CoreV1().Pods(guard.Namespace).Get(t.Context(), guard.Name("etcd"), metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the guard pod: %v", err)
}

// helm runs helm in the namespace of Holdfast.
func (f *uninstallFixture) helm(t *testing.T, args ...string) (out string, err error) {
	program, err := process.Binary("helm")
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(t.Context(), program, append(args, "--namespace", guard.Namespace)...)
	command.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + f.Kubeconfig()}
	var both bytes.Buffer
	command.Stdout, command.Stderr = &both, &both
	err = command.Run()
	return both.String(), err
}

// addGuardPod adds a pod as the webhook creates it, which belongs to no release.
func (f *uninstallFixture) addGuardPod(t *testing.T) {
	t.Helper()
	_, err := f.Client().CoreV1().Pods(guard.Namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: guard.Name("etcd"), Labels: map[string]string{"app.kubernetes.io/part-of": "holdfast"},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "guard", Image: "guard"}}, ServiceAccountName: "holdfast-guard",
			TerminationGracePeriodSeconds: new(int64(0)),
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// jobPod waits for the pod of the Job, which is another one than that of the Job before.
func (f *uninstallFixture) jobPod(t *testing.T, before string) (pod *corev1.Pod) {
	t.Helper()
	require.Eventually(t, func() bool {
		job, err := f.Client().BatchV1().Jobs(guard.Namespace).Get(t.Context(), "holdfast-uninstall", metav1.GetOptions{})
		if err != nil {
			return false
		}
		pods, err := f.Client().CoreV1().Pods(guard.Namespace).List(t.Context(), metav1.ListOptions{
			LabelSelector: "batch.kubernetes.io/controller-uid=" + string(job.UID),
		})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Name == before {
			return false
		}
		pod = &pods.Items[0]
		return true
	}, 2*time.Minute, 100*time.Millisecond)
	return pod
}

// requireNoRights checks that the roles of the Job do not exist.
func (f *uninstallFixture) requireNoRights(t *testing.T) {
	t.Helper()
	_, err := f.Client().RbacV1().ClusterRoles().Get(t.Context(), "holdfast-uninstall", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = f.Client().RbacV1().Roles(guard.Namespace).Get(t.Context(), "holdfast-uninstall", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
