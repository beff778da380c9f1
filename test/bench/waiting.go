package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/holdfast-dev/holdfast/pkg/machine"
)

const (
	// waitingClaims is the number of NodeClaims. Those beyond the last etcd cluster stand for ordinary
	// nodes.
	waitingClaims = 20
	// benchFinalizer keeps an object that is being deleted, as its controller does.
	benchFinalizer = "bench.holdfast.dev/waits"
)

// measureWaitingMachines measures one replica of the webhook while Machines and NodeClaims are
// being deleted. Each node of an etcd cluster but the last one has a Machine, which waits for
// its hook: a review allows the end of some, and refuses that of the others again and again. The
// nodes of the last cluster have NodeClaims, some of which keep grants.
func (s *scaledCluster) measureWaitingMachines(ctx context.Context, t *resultTable) error {
	client, err := dynamic.NewForConfig(s.API.Admin())
	if err != nil {
		return err
	}
	w := waitingMachines{
		scaledCluster: s,
		machines: client.Resource(schema.GroupVersionResource{
			Group: machine.ClusterAPIGroup, Version: "v1beta2", Resource: machine.Resource,
		}).Namespace(metav1.NamespaceDefault),
		claims: client.Resource(schema.GroupVersionResource{
			Group: machine.KarpenterGroup, Version: "v1", Resource: "nodeclaims",
		}),
	}
	count := (scaleClusters - 1) * s.members
	t.progress("deleting %d Machines and %d NodeClaims", count, waitingClaims)
	if err := w.deleteAll(ctx, count); err != nil {
		return err
	}
	if err := s.measureWebhook(ctx, t, fmt.Sprintf("%d nodes, waiting Machines", len(s.names))); err != nil {
		return err
	}
	hooked, err := w.countHooked(ctx)
	if err != nil {
		return err
	}
	t.add(resultRow{what: fmt.Sprintf("Machines of %d that still wait for their hook", count), median: fmt.Sprint(hooked)})
	return nil
}

// waitingMachines has the clients for Machines and NodeClaims.
type waitingMachines struct {
	*scaledCluster
	machines, claims dynamic.ResourceInterface
}

// deleteAll creates the objects and deletes them: the NodeClaims while the webhook reviews that,
// and the Machines while none answers, so that all of them get to their hook.
func (w waitingMachines) deleteAll(ctx context.Context, machines int) error {
	for i := range machines {
		node := nodeName(i + 1)
		status := map[string]any{"nodeRef": map[string]any{"name": node}}
		if err := w.create(ctx, w.machines, "cluster.x-k8s.io/v1beta2", machine.KindMachine, node, status); err != nil {
			return err
		}
	}
	err := w.WaitUntil(ctx, "the hooks of all Machines", func(ctx context.Context) error {
		hooked, err := w.countHooked(ctx)
		if err == nil && hooked != machines {
			err = fmt.Errorf("%d of %d Machines have the hook", hooked, machines)
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := range waitingClaims {
		node := nodeName(machines + i + 1)
		if i >= w.members {
			node = w.names[i]
		}
		status := map[string]any{"nodeName": node, "conditions": []any{
			map[string]any{"type": "Registered", "status": "False"},
		}}
		if err := w.create(ctx, w.claims, "karpenter.sh/v1", machine.KindNodeClaim, node, status); err != nil {
			return err
		}
		err := w.claims.Delete(ctx, node, metav1.DeleteOptions{})
		if err != nil && !strings.Contains(err.Error(), "denied the request") {
			return fmt.Errorf("deleting the NodeClaim of node %s: %w", node, err)
		}
	}
	if err := w.killWebhooks(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fleetParallelism)
	for i := range machines {
		g.Go(func() error { return w.deleteMachine(ctx, nodeName(i+1)) })
	}
	return g.Wait()
}

func (w waitingMachines) create(
	ctx context.Context, objects dynamic.ResourceInterface, version, kind, node string, status map[string]any,
) error {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"name": node, "finalizers": []any{benchFinalizer}},
	}}
	made, err := objects.Create(ctx, o, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the %s of node %s: %w", kind, node, err)
	}
	made.Object["status"] = status
	if _, err = objects.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status of the %s of node %s: %w", kind, node, err)
	}
	return nil
}

// deleteMachine deletes a Machine, and reports as Cluster API does that its hook is due.
func (w waitingMachines) deleteMachine(ctx context.Context, name string) error {
	if err := w.machines.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting Machine %s: %w", name, err)
	}
	m, err := w.machines.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	err = unstructured.SetNestedField(m.Object, metav1.Now().UTC().Format("2006-01-02T15:04:05Z"),
		"status", "deletion", "waitForPreTerminateHookStartTime")
	if err != nil {
		return err
	}
	if _, err = w.machines.UpdateStatus(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status of Machine %s: %w", name, err)
	}
	return nil
}

// countHooked returns the number of Machines with a hook.
func (w waitingMachines) countHooked(ctx context.Context) (int, error) {
	list, err := w.machines.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("listing the Machines: %w", err)
	}
	hooked := 0
	for i := range list.Items {
		if _, isHooked := list.Items[i].GetAnnotations()[machine.HookAnnotation]; isHooked {
			hooked++
		}
	}
	return hooked, nil
}
