package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

func TestRemoveGuards(t *testing.T) {
	labels, now := map[string]string{guard.NodeLabel: "true"}, metav1.Now()
	client := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: guard.Namespace, Name: guard.Name("etcd-1"), Labels: labels}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: guard.Namespace, Name: guard.Name("etcd-2"), Labels: labels,
			DeletionTimestamp: &now, Finalizers: []string{"x/y"},
		}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: guard.Namespace, Name: "other", Labels: labels}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: guard.Namespace, Name: guard.NamePrefix + "other"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: guard.Name("etcd-1"), Labels: labels}},
	)
	for _, want := range []string{"guard pod holdfast-guard-etcd-1: deleted\n", ""} {
		var out strings.Builder
		require.NoError(t, removeGuards(t.Context(), client, &out))
		require.Equal(t, want, out.String())
	}
	left, err := client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, left.Items, 4)
}
