package storm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deleteMany is one client: it deletes nodes, most of them with etcd, until enough have been deleted by all.
func (s *storm) deleteMany(ctx context.Context, random *rand.Rand, left *atomic.Int64) error {
	begun := time.Now()
	for number := left.Add(-1); number >= 0 || s.count("etcd allowed") < leastAllowed && time.Since(begun) < longest; number = left.Add(-1) {
		if err := pause(ctx, upTo(random, 1500*time.Millisecond)); err != nil {
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
			err = s.ambush(ctx, names[random.IntN(len(names))], random)
		default:
			err = s.deleteEtcd(ctx, names[random.IntN(len(names))])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *storm) count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// deleteEtcd asks for the deletion of a node with etcd, and condemns its machine if that was allowed.
func (s *storm) deleteEtcd(ctx context.Context, node string) error {
	s.mu.Lock()
	uid, there := s.uids[node]
	s.mu.Unlock()
	if !there {
		return nil
	}
	asked := span{from: time.Now()}
	err := s.client.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	asked.to = time.Now()
	if err != nil {
		return s.refused("etcd", node, asked, err)
	}
	d := deletion{span: asked, node: node}
	s.mu.Lock()
	for _, c := range s.clusters {
		if m := c.member(node); m != nil {
			d.members = append(d.members, c.id(m))
		}
	}
	delete(s.uids, node)
	s.counts["etcd allowed"]++
	s.mu.Unlock()
	s.history.allowed(d)
	s.condemned[node] <- struct{}{}
	return nil
}

// deleteOrdinary makes a node without etcd and deletes it.
func (s *storm) deleteOrdinary(ctx context.Context, number int64) error {
	name := fmt.Sprintf("worker-%d", number)
	if _, err := s.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	asked := span{from: time.Now()}
	err := s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	asked.to = time.Now()
	if err != nil {
		return s.refused("ordinary", name, asked, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["ordinary allowed"]++
	return nil
}

// refused counts an answer that was no yes. It fails if that was neither a verdict, nor that the Node had gone meanwhile,
// nor the death of the webhook that was asked.
func (s *storm) refused(kind, node string, asked span, err error) error {
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
		s.counts[kind+" gone meanwhile"]++
	case slices.ContainsFunc(s.outages, asked.meets) && apierrors.IsInternalError(err):
		s.counts[kind+" unanswered by a killed webhook"]++
	default:
		return fmt.Errorf("deleting node %s: %w", node, err)
	}
	return nil
}

// upTo is a random time below the longest.
func upTo(random *rand.Rand, longest time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(longest)))
}

// pause waits, or says why not.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
