package stress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/test/fixture"
)

// deleteNodes runs one client. It deletes nodes, most of them with etcd, until all clients
// together have deleted enough.
func (s *stressTest) deleteNodes(ctx context.Context, random *rand.Rand, left *atomic.Int64) error {
	begun := time.Now()
	isMore := func(number int64) bool {
		return number >= 0 || s.count("etcd allowed") < leastAllowed && time.Since(begun) < longest
	}
	for number := left.Add(-1); isMore(number); number = left.Add(-1) {
		if err := fixture.Wait(ctx, randomBelow(random, 1500*time.Millisecond)); err != nil {
			return err
		}
		var err error
		s.mu.Lock()
		names := slices.Sorted(maps.Keys(s.uids))
		s.mu.Unlock()
		switch choice := random.IntN(10); {
		case choice < 2 || len(names) == 0:
			err = s.deleteOrdinary(ctx, number)
		case choice < 8:
			err = s.deleteDuringFault(ctx, names[random.IntN(len(names))], random)
		default:
			err = s.deleteEtcd(ctx, names[random.IntN(len(names))])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stressTest) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// deleteEtcd deletes a node with etcd. If that is allowed, it schedules the replacement of the
// machine.
func (s *stressTest) deleteEtcd(ctx context.Context, node string) error {
	s.mu.Lock()
	uid, exists := s.uids[node]
	s.mu.Unlock()
	if !exists {
		return nil
	}
	request := timeSpan{from: time.Now()}
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	// Each DELETE has its own user, so that the messages tell them apart.
	err := s.client.CoreV1().RESTClient().Delete().Resource("nodes").Name(node).Body(&options).
		SetHeader(authenticationv1.ImpersonateUserHeader, fmt.Sprintf("client-%d", s.users.Add(1))).
		SetHeader(authenticationv1.ImpersonateGroupHeader, "system:masters").Do(ctx).Error()
	request.to = time.Now()
	if err != nil {
		return s.recordRefusal("etcd", node, request, err)
	}
	d := allowedDeletion{timeSpan: request, node: node}
	s.mu.Lock()
	for _, c := range s.clusters {
		if m := c.member(node); m != nil {
			d.members = append(d.members, c.memberID(m))
		}
	}
	delete(s.uids, node)
	s.counts["etcd allowed"]++
	s.mu.Unlock()
	s.history.recordAllowed(d)
	s.toReplace[node] <- struct{}{}
	return nil
}

// deleteOrdinary creates a node without etcd and deletes it.
func (s *stressTest) deleteOrdinary(ctx context.Context, number int64) error {
	name := fmt.Sprintf("worker-%d", number)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := s.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	request := timeSpan{from: time.Now()}
	err = s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	request.to = time.Now()
	if err != nil {
		return s.recordRefusal("ordinary", name, request, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["ordinary allowed"]++
	return nil
}

// recordRefusal counts a failed deletion. It returns an error unless the deletion was refused,
// the Node was deleted meanwhile, the webhook was killed during the request, or the API server did
// not wait for its answer any longer, which it then takes as a refusal.
func (s *stressTest) recordRefusal(kind, node string, request timeSpan, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status):
		return fmt.Errorf("deleting node %s: %w", node, err)
	case status.Status().Code == http.StatusForbidden:
		s.counts[kind+" refused"]++
	case status.Status().Code == http.StatusServiceUnavailable:
		s.counts[kind+" undecided"]++
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		s.counts[kind+" not found"]++
	case slices.ContainsFunc(s.outages, request.overlaps) && apierrors.IsInternalError(err):
		s.counts[kind+" failed during a webhook outage"]++
	case apierrors.IsInternalError(err) && strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error()):
		s.counts[kind+" unanswered"]++
	default:
		return fmt.Errorf("deleting node %s: %w", node, err)
	}
	return nil
}

// randomBelow returns a random duration below the longest.
func randomBelow(random *rand.Rand, longest time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(longest)))
}
