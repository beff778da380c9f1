package stress

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// rebootTime is how long a drained node is away after the other drains were refused. It is longer
// than kubectl waits between two evictions, so a second drain that was allowed meanwhile would have
// been seen.
const rebootTime = 8 * time.Second

// TestDrains drains all nodes of a cluster with `kubectl drain` at the same time, and restarts and
// uncordons each drained machine. One drain proceeds. The others print why they wait, until the
// first node is back; then the next one proceeds.
func TestDrains(t *testing.T) {
	s := newEnvironment(t)
	s.startEtcd(t, "three", false, 1, 2, 3)
	s.startHoldfast(t, 3)
	defer s.startKubelets(t)()
	s.addAgentPods(t)
	for node := range s.nodes {
		s.waitForGuard(t, node)
	}

	log := drainLog{output: map[string]string{}}
	ctx, cancel := context.WithTimeout(t.Context(), 3*fixture.Timeout)
	defer cancel()
	var g errgroup.Group
	for node := range s.nodes {
		g.Go(func() error {
			out, err := s.API.Kubectl(ctx, "drain", node, "--ignore-daemonsets")
			isSecond, err := log.add(node, out, err)
			if isSecond {
				cancel() // The third drain would wait for the second one in the same way.
			}
			if err != nil || isSecond || ctx.Err() != nil {
				return err
			}
			return s.reboot(ctx, node, &log)
		})
	}
	require.NoError(t, g.Wait())

	require.Len(t, log.drained, 2)
	for node, out := range log.output {
		const refused = `(will retry after 5s): admission webhook "guard-pods.holdfast.dev" denied the request: `
		if node == log.drained[0] {
			require.NotContains(t, out, refused)
			continue
		}
		require.Contains(t, out, refused+"draining node "+node+" would break quorum")
		require.Contains(t, out, "node "+log.drained[0]+" was drained at ")
	}
	s.waitForGuard(t, log.drained[0])
}

// drainLog records which drains have proceeded, and what kubectl has printed.
type drainLog struct {
	mu      sync.Mutex // guards the fields below
	away    string
	drained []string
	output  map[string]string
}

// add records the end of kubectl. It reports whether this is the second drain that has proceeded;
// then the others are interrupted. It returns an error if the node before is still away.
func (l *drainLog) add(node, out string, err error) (isSecond bool, failed error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.output[node] = out
	switch {
	case err != nil && len(l.drained) == 2:
		return false, nil
	case err != nil:
		return false, err
	case l.away != "":
		return false, fmt.Errorf("node %s was drained while %s is away: %s", node, l.away, out)
	}
	l.away, l.drained = node, append(l.drained, node)
	return len(l.drained) == 2, nil
}

func (l *drainLog) comeBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = ""
}

// reboot stops the member on a node, starts it again, and uncordons the node.
func (s *stressTest) reboot(ctx context.Context, node string, log *drainLog) error {
	c := s.clusters[0]
	m := c.member(node)
	if err := c.injectFault(m, true); err != nil {
		return err
	}
	if err := c.checkRead(ctx); err != nil {
		return fmt.Errorf("with node %s away: %w", node, err)
	}
	if err := s.WaitUntil(ctx, "the other drains to be refused", func(ctx context.Context) error {
		return s.checkRefused(ctx, node)
	}); err != nil {
		return err
	}
	if err := fixture.Wait(ctx, rebootTime); err != nil {
		return err
	}
	log.comeBack()
	if err := c.recoverMember(m); err != nil {
		return err
	}
	_, err := s.API.Kubectl(ctx, "uncordon", node)
	return err
}

// checkRefused returns nil if the drains of all other nodes were refused.
func (s *stressTest) checkRefused(ctx context.Context, drained string) error {
	for node := range s.nodes {
		events, err := s.client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "reason=DrainRefused,involvedObject.kind=Node,involvedObject.name=" + node,
		})
		if err == nil && node != drained && len(events.Items) == 0 {
			err = fmt.Errorf("the drain of node %s was not refused", node)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startKubelets ends pods that are deleted, as the kubelets of their nodes do.
func (s *stressTest) startKubelets(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pods := s.client.CoreV1().Pods(guard.Namespace)
	w, err := pods.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.DeletionTimestamp != nil {
				_ = pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
					GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
				})
			}
		}
	})
	return func() {
		cancel()
		w.Stop()
		running.Wait()
	}
}

// addAgentPods creates the pods of the DaemonSet on the nodes with etcd. The agents themselves run
// as processes.
func (s *stressTest) addAgentPods(t *testing.T) {
	t.Helper()
	agents, err := s.client.AppsV1().DaemonSets(guard.Namespace).Get(t.Context(), "holdfast-agent", metav1.GetOptions{})
	require.NoError(t, err)
	for node := range s.nodes {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "holdfast-agent-" + node, Labels: agents.Spec.Template.Labels,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "DaemonSet", Name: agents.Name, UID: agents.UID, Controller: new(true),
			}},
		}, Spec: agents.Spec.Template.Spec}
		pod.Spec.NodeName = node
		_, err := s.client.CoreV1().Pods(guard.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func (s *stressTest) waitForGuard(t *testing.T, node string) {
	t.Helper()
	require.NoError(t, s.WaitUntil(t.Context(), "the guard pod of "+node, func(ctx context.Context) error {
		_, err := s.client.CoreV1().Pods(guard.Namespace).Get(ctx, guard.Name(node), metav1.GetOptions{})
		return err
	}))
}
