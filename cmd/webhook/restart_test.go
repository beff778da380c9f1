package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// endpointDelay is how long the Service of the tests still sends connections to a replica
// after SIGTERM, and only to that one, as in a cluster, where each node reads the endpoints with
// its own delay.
const endpointDelay = 700 * time.Millisecond

// testRestarts restarts both replicas, and then kills one, while clients delete nodes with etcd.
// Each deletion must get the answer that a running webhook gives. A kill may cut off the reviews
// that are under way in that moment, and one on each idle connection. A restart may cut off one
// that is sent on an idle connection in the moment in which the server closes it
// (closeConnections).
func testRestarts(t *testing.T, f *fixture) {
	args := []string{"--observer-wait=400ms"}
	f.startReady(t, args, args)
	f.addNode(t, "unknown-etcd", etcdLabel())
	f.addSilentMember(t, "silent-2", "ce")
	load := f.startLoad(t)

	var closings []closing
	for i, replica := range f.replicas {
		f.service.SetBackends(replica.address)
		load.waitForMore(t)
		stopped := time.Now()
		var switched time.Time
		var endpoints errgroup.Group
		endpoints.Go(func() error {
			err := loop.Wait(t.Context(), endpointDelay, nil)
			f.service.SetBackends(f.replicas[1-i].address)
			switched = time.Now()
			return err
		})
		require.NoError(t, syscall.Kill(replica.PID(), syscall.SIGTERM))
		replica.requireStopped(t)
		require.NoError(t, endpoints.Wait())
		// On a busy machine, the Service may use a replica for longer than that lingers.
		closed := stopped.Add(lingerTime)
		closings = append(closings, closing{closed, time.Now(), switched.After(closed)})
		load.waitForMore(t)
		replica.start(t)
		// The Service sends connections here before the replica is ready.
		f.service.SetBackends(f.addresses()...)
		replica.waitReady(t)
	}
	load.waitForMore(t)
	before := load.failures()
	for _, failed := range before {
		at := slices.IndexFunc(closings, failed.wasUnderWay)
		require.GreaterOrEqual(t, at, 0, "a rolling restart cost an answer: %v", before)
		if !closings[at].isUsed {
			closings = slices.Delete(closings, at, at+1)
		}
	}

	require.NoError(t, f.replicas[0].Kill())
	// Each connection to the replica can fail once.
	for range 5 {
		if load.isAnswered(t) {
			break
		}
	}
	require.True(t, load.isAnswered(t), "%v", load.failures())
	f.replicas[0].start(t)
	f.replicas[0].waitReady(t)
	require.True(t, load.isAnswered(t), "%v", load.failures())
}

// testLostLease takes the Lease from the leader. The leader must report that it is not ready, and
// answer reviews until the Service no longer uses it.
func testLostLease(t *testing.T, f *fixture) {
	f.startReady(t, []string{"--lease-duration=9s"})
	f.addNode(t, "leaderless-etcd", etcdLabel())
	f.waitForLeader(t)
	replica := f.replicas[0]
	leases := f.Client().CoordinationV1().Leases("holdfast-system")
	require.Eventually(t, func() bool {
		lease, err := leases.Get(t.Context(), leaseName, metav1.GetOptions{})
		require.NoError(t, err)
		lease.Spec.HolderIdentity = new("another replica")
		lease.Spec.RenewTime = new(metav1.NowMicro())
		_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err == nil
	}, soon, time.Millisecond)

	isReady := func() bool {
		code, _ := fetch(t, "http://"+replica.health+"/readyz")
		return code == http.StatusOK
	}
	ready := time.Now() // the last time when it was ready, or a little earlier
	require.Eventually(t, func() bool {
		asked := time.Now()
		if !isReady() {
			return true
		}
		ready = asked
		return false
	}, soon, 20*time.Millisecond)
	require.Contains(t, replica.fetchMetrics(t), "holdfast_webhook_ready 0\n")
	answered := 0
	for ; loop.Wait(t.Context(), 100*time.Millisecond, nil) == nil; answered++ {
		err := f.deleteNode(t, "leaderless-etcd")
		if !apierrors.IsForbidden(err) { // the status of every verdict that refuses
			require.GreaterOrEqual(t, time.Since(ready), failureLingerTime-time.Second, "%v", err)
			break
		}
		require.False(t, isReady())
	}
	require.Positive(t, answered)
	require.Eventually(t, func() bool { return !replica.Running() }, soon, 10*time.Millisecond)
	require.ErrorContains(t, replica.Exited(), "exit status 1")
	require.Contains(t, replica.LogTail(3), "leader election lost")
}

// A deletionLoad is a set of clients that delete nodes with etcd until the test ends.
type deletionLoad struct {
	mu     sync.Mutex // guards the fields below
	count  int
	failed []unanswered
}

// unanswered is a deletion without a verdict.
type unanswered struct {
	node     string
	from, to time.Time
	err      error
}

// A closing is when a replica closes its connections, and whether the Service still uses it then.
type closing struct {
	from, to time.Time
	isUsed   bool
}

func (u unanswered) wasUnderWay(c closing) bool { return u.from.Before(c.to) && u.to.After(c.from) }

func (u unanswered) String() string {
	return fmt.Sprintf("%s, %s to %s: %v", u.node, u.from.Format(time.StampMilli), u.to.Format(time.StampMilli), u.err)
}

// startLoad starts clients of the nodes unknown-etcd, which is refused at once, and silent-2, whose
// review waits for an agent.
func (f *fixture) startLoad(t *testing.T) *deletionLoad {
	t.Helper()
	load := &deletionLoad{}
	ctx, stop := context.WithCancel(t.Context())
	var clients errgroup.Group
	for i := range 8 {
		node := []string{"unknown-etcd", "silent-2"}[i%2]
		clients.Go(func() error {
			for loop.Wait(ctx, 20*time.Millisecond, nil) == nil {
				from := time.Now()
				err := f.Client().CoreV1().Nodes().Delete(context.WithoutCancel(ctx), node, metav1.DeleteOptions{})
				load.add(unanswered{node: node, from: from, to: time.Now(), err: err})
			}
			return nil
		})
	}
	t.Cleanup(func() {
		stop()
		require.NoError(t, clients.Wait())
	})
	return load
}

func (l *deletionLoad) add(u unanswered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	if !apierrors.IsForbidden(u.err) && !isLate(u.err) { // Forbidden is every verdict that refuses.
		l.failed = append(l.failed, u)
	}
}

// isLate reports whether the API server has waited for a verdict in vain, as on a busy machine.
func isLate(err error) bool {
	return apierrors.IsInternalError(err) && strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error())
}

func (l *deletionLoad) answered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *deletionLoad) failures() []unanswered {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// isAnswered reports whether the next 20 deletions get an answer.
func (l *deletionLoad) isAnswered(t *testing.T) bool {
	t.Helper()
	before := len(l.failures())
	l.waitForMore(t)
	return len(l.failures()) == before
}

// waitForMore waits for 20 more answers.
func (l *deletionLoad) waitForMore(t *testing.T) {
	t.Helper()
	want := l.answered() + 20
	require.Eventually(t, func() bool { return l.answered() >= want }, soon, 10*time.Millisecond)
}

// TestManifestTimes checks that the Deployment gives a replica enough time to stop, and the
// memory limit that the tests use.
func TestManifestTimes(t *testing.T) {
	content, err := os.ReadFile("../../manifests/base/webhook.yaml")
	require.NoError(t, err)
	var deployment appsv1.Deployment
	_, text, found := strings.Cut(string(content), "apiVersion: apps/v1\n")
	require.True(t, found)
	require.NoError(t, yaml.Unmarshal([]byte(strings.Split(text, "\n---\n")[0]), &deployment))
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	preStop := time.Duration(container.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
	// After the reviews, the manager has drainTime for the leader's loop and the Lease.
	require.Less(t, preStop+lingerTime+2*drainTime, grace)
	name, value, _ := strings.Cut(memoryLimit, "=")
	require.Contains(t, container.Env, corev1.EnvVar{Name: name, Value: value})
	limit, err := resource.ParseQuantity(strings.TrimSuffix(value, "B"))
	require.NoError(t, err)
	require.Positive(t, container.Resources.Limits.Memory().Cmp(limit))
}
