package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/test/site"
)

// release writes flannel's subnet file and returns how long after that the API server told that the node is schedulable.
func (w *world) release(ctx context.Context, node string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, site.Patience)
	defer cancel()
	nodes := w.API.Client().CoreV1().Nodes()
	n, err := nodes.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if n.Spec.PodCIDR == "" {
		return 0, fmt.Errorf("node %s has no podCIDR", node)
	}
	watch, err := nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node, ResourceVersion: n.ResourceVersion})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	subnet := fmt.Sprintf("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		strings.Replace(n.Spec.PodCIDR, ".0/", ".1/", 1))
	if err := w.Write(node, "run/flannel/subnet.env", subnet, 0o644); err != nil {
		return 0, err
	}
	there := time.Now()
	for event := range watch.ResultChan() {
		if n, ok := event.Object.(*corev1.Node); ok && !n.Spec.Unschedulable {
			return time.Since(there), nil
		}
	}
	return 0, fmt.Errorf("waiting for node %s to be released: %w", node, errors.Join(w.Dead(), ctx.Err()))
}

// deleteNode asks for a node's deletion as a person does, and shows what kubectl answers.
func (w *world) deleteNode(ctx context.Context, s *story, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, site.Patience)
	defer cancel()
	out, err := w.API.Kubectl(ctx, "delete", "node", node)
	s.show("kubectl delete node "+node, out)
	return out, err
}
