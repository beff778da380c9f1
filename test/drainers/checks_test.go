//go:build drainers

package drainers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// wait calls check until it returns nil, for at most patience.
func (r *rig) wait(what string, check func(context.Context) error) {
	r.t.Helper()
	var err error
	for begun := time.Now(); ; {
		if err = r.WaitUntil(r.t.Context(), what, check); err == nil || time.Since(begun) >= patience {
			break
		}
	}
	require.NoError(r.t, err)
}

// waitHealthy waits until this many members are reported healthy and bound.
func (r *rig) waitHealthy(members int) {
	r.t.Helper()
	r.wait("all members to be reported healthy", func(ctx context.Context) error {
		const format = "jsonpath={.items[0].status.healthy} of {.items[0].status.voters}"
		out, err := r.API.Kubectl(ctx, "get", "etcdclusters", "-o", format)
		if want := fmt.Sprintf("%d of %d", members, members); err == nil && out != want {
			err = fmt.Errorf("the summary has %q, want %q", out, want)
		}
		return err
	})
}

// waitForGuard waits for the guard pod of a node.
func (r *rig) waitForGuard(node string) {
	r.t.Helper()
	r.wait("the guard pod of "+node, func(ctx context.Context) error {
		_, err := r.core.CoreV1().Pods(guard.Namespace).Get(ctx, guard.Name(node), metav1.GetOptions{})
		return err
	})
}

// isUntouched returns an error unless nothing was taken from a node: the Node is not being deleted,
// all its pods are there, and its member runs.
func (r *rig) isUntouched(ctx context.Context, member int) error {
	name := r.nodeOf(member)
	node, err := r.core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var problems []string
	if node.DeletionTimestamp != nil {
		problems = append(problems, "the Node is being deleted")
	}
	for _, pod := range []struct{ namespace, name string }{
		{namespace, "workload-on-" + name}, {guard.Namespace, guard.Name(name)},
	} {
		p, err := r.core.CoreV1().Pods(pod.namespace).Get(ctx, pod.name, metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			problems = append(problems, fmt.Sprintf("pod %s is gone or being deleted (%v)", pod.name, err))
		}
	}
	if !r.etcd.Member(member).Running() {
		problems = append(problems, "the etcd member does not run")
	}
	if len(problems) > 0 {
		return fmt.Errorf("node %s: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

// requireCalm requires that a check succeeds all the time while Holdfast refuses.
func (r *rig) requireCalm(check func(context.Context) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), calm)
	defer cancel()
	for ctx.Err() == nil {
		if err := check(ctx); ctx.Err() == nil {
			require.NoError(r.t, err)
		}
		_ = fixture.Wait(ctx, kubeletInterval) // the loop checks ctx
	}
}

// requireRefused requires that the API server refuses the deletion of an object with Holdfast's
// answer, and that nothing happens to the object and its node.
func (r *rig) requireRefused(o *unstructured.Unstructured, member int) {
	r.t.Helper()
	node := r.nodeOf(member)
	var answer error
	r.wait("an answer about quorum", func(ctx context.Context) error {
		answer = r.client.Delete(ctx, o)
		if answer == nil || strings.Contains(answer.Error(), "deleting node "+node+" would break quorum of etcd cluster") {
			return nil
		}
		return answer // For example, the member that was paused led the others, which elect another one.
	})
	require.ErrorContains(r.t, answer, o.GetName()+" stands for node "+node+": both have the provider ID ")
	r.requireCalm(func(ctx context.Context) error {
		current, err := r.get(ctx, o)
		if err == nil && (current == nil || current.GetDeletionTimestamp() != nil) {
			err = fmt.Errorf("%s %s is gone or being deleted", o.GetKind(), o.GetName())
		}
		return errors.Join(err, r.isUntouched(ctx, member))
	})
}

// requireQuorum makes a linearizable read.
func (r *rig) requireQuorum() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), fixture.Timeout)
	defer cancel()
	etcd, err := r.etcd.Client(ctx)
	require.NoError(r.t, err)
	defer func() { require.NoError(r.t, etcd.Close()) }()
	_, err = etcd.Get(ctx, "drainers")
	require.NoError(r.t, err)
}
