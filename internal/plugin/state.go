package plugin

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// readState reads everything that the reports are about.
func readState(ctx context.Context, kube client.Reader) (report.State, error) {
	clusters, nodes := &v1alpha1.EtcdClusterList{}, &corev1.NodeList{}
	if err := kube.List(ctx, clusters); err != nil {
		return report.State{}, readError("etcdclusters.holdfast.dev", err)
	}
	if err := kube.List(ctx, nodes); err != nil {
		return report.State{}, readError("nodes", err)
	}
	return report.State{Clusters: clusters.Items, Nodes: nodes.Items, Now: time.Now()}, nil
}

// addGuardPods reads the guard pods. That they cannot be read is part of the state.
func addGuardPods(ctx context.Context, kube client.Reader, s *report.State) {
	pods := &corev1.PodList{}
	err := kube.List(ctx, pods, client.InNamespace(guard.Namespace))
	if err != nil {
		s.GuardProblem = readError("pods in namespace "+guard.Namespace, err).Error()
		return
	}
	for _, p := range pods.Items {
		if strings.HasPrefix(p.Name, guard.NamePrefix) && p.DeletionTimestamp == nil {
			s.GuardPods = append(s.GuardPods, p.Name)
		}
	}
}

// readError explains why objects could not be listed.
func readError(what string, err error) error {
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return fmt.Errorf("the API server has no %s: Holdfast is not installed in this cluster "+
			"(check the context: kubectl config current-context)", what)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("listing %s: %w (you need the verb list, and watch for --watch)", what, err)
	}
	return fmt.Errorf("listing %s: %w", what, err)
}
