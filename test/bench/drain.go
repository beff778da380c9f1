package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

const (
	// drainPairs is the number of deletions and drains in turn.
	drainPairs = 15
	// drainTarget limits the median of a drain as a multiple of that of a deletion. A drain reads
	// the guard pod, and its Node once more.
	drainTarget = 1.3
)

// measureDrain measures allowed deletions and drains of the same node in turn.
func measureDrain(ctx context.Context, b *benchCluster, t *resultTable) error {
	if err := b.prepareDrains(ctx); err != nil {
		return err
	}
	answers := answerLog{offsets: map[string]int{}}
	if _, err := answers.readNew(b); err != nil {
		return err
	}
	var deletions, drains durations
	for i := range drainPairs {
		if err := fixture.Wait(ctx, verdictInterval); err != nil {
			return err
		}
		deletions = append(deletions, b.deleteAs(ctx, fmt.Sprintf("user-%d", i), nodeName(1)))
		if err := fixture.Wait(ctx, verdictInterval); err != nil {
			return err
		}
		drains = append(drains, b.drain(ctx, nodeName(1)))
	}
	found, err := answers.readNew(b)
	if err != nil {
		return err
	}
	if sums := countAnswers(found); sums["allowed QuorumKept"] < 2*drainPairs {
		return fmt.Errorf("the answers were %v, want %d that allow; see the logs of the webhooks", sums, 2*drainPairs)
	}
	t.add(deletions.row("deletion, in turn with a drain"))
	t.add(drains.row("drain of the same node").judged(drains.ratioTo(deletions), drainTarget))
	return nil
}

// prepareDrains cordons all nodes with etcd, and creates guard pods on them. There are no agents in
// pods whose image the webhook could use.
func (b *benchCluster) prepareDrains(ctx context.Context) error {
	cordon := []byte(`{"spec": {"unschedulable": true}}`)
	for i := range b.members {
		node := nodeName(i + 1)
		_, err := b.nodes.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, cordon, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("cordoning node %s: %w", node, err)
		}
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: guard.Name(node), Namespace: guard.Namespace},
			Spec: corev1.PodSpec{
				NodeName: node, ServiceAccountName: "holdfast-agent",
				Containers: []corev1.Container{{Name: "guard", Image: "guard"}},
			},
		}
		_, err = b.nodes.CoreV1().Pods(guard.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating the guard pod of node %s: %w", node, err)
		}
	}
	return nil
}

// deleteAs deletes a node as another user, which the stub refuses, and returns the duration of the
// request. A second deletion by the same user could be answered by the grant of the first.
func (b *benchCluster) deleteAs(ctx context.Context, user, node string) time.Duration {
	begun := time.Now()
	_ = b.nodes.CoreV1().RESTClient().Delete().Resource("nodes").Name(node).
		SetHeader("Impersonate-User", user).SetHeader("Impersonate-Group", "system:masters").Do(ctx).Error()
	return time.Since(begun)
}

// drain evicts the guard pod of a node, which the stub refuses, and returns the duration of the
// request.
func (b *benchCluster) drain(ctx context.Context, node string) time.Duration {
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: guard.Name(node), Namespace: guard.Namespace}}
	begun := time.Now()
	_ = b.nodes.CoreV1().Pods(guard.Namespace).EvictV1(ctx, eviction)
	return time.Since(begun)
}
