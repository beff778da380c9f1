package stress

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// injectFaults kills or pauses members of a cluster and recovers them a little later, until the
// context faults ends.
func (s *stressTest) injectFaults(faults context.Context, c *stressCluster, random *rand.Rand) error {
	for fixture.Wait(faults, randomBelow(random, time.Second)) == nil {
		members := c.liveMembers()
		m := members[random.IntN(len(members))]
		c.faultFree.Lock()
		err := c.injectFault(m, random.IntN(2) == 0)
		c.faultFree.Unlock()
		if err != nil {
			return fmt.Errorf("injecting a fault into %s: %w", m.Name, err)
		}
		_ = fixture.Wait(faults, randomBelow(random, 2*time.Second)) // the member recovers in any case
		if err := c.recoverSafely(m); err != nil {
			return err
		}
	}
	return nil
}

// deleteDuringFault injects a fault into a member and deletes the node of another member
// directly afterwards. A decision from older observations would be wrong.
func (s *stressTest) deleteDuringFault(ctx context.Context, node string, random *rand.Rand) error {
	on := slices.DeleteFunc(slices.Clone(s.clusters), func(c *stressCluster) bool { return c.member(node) == nil })
	if len(on) == 0 {
		return s.deleteEtcd(ctx, node)
	}
	c := on[random.IntN(len(on))]
	members := slices.DeleteFunc(c.liveMembers(), func(m *etcd.Member) bool { return m.Node == node })
	if len(members) == 0 || !c.faultFree.TryLock() {
		return s.deleteEtcd(ctx, node)
	}
	m := members[random.IntN(len(members))]
	err := c.injectFault(m, random.IntN(2) == 0)
	c.faultFree.Unlock()
	if err == nil {
		err = fixture.Wait(ctx, 2*stopDelay)
	}
	if err == nil {
		err = s.deleteEtcd(ctx, node)
	}
	return errors.Join(err, c.recoverSafely(m))
}

// restartWebhook kills the first webhook, which leads, after half of the deletions, and
// restarts it.
func (s *stressTest) restartWebhook(ctx context.Context, left *atomic.Int64) error {
	for left.Load() > deletions/2 {
		if fixture.Wait(ctx, 50*time.Millisecond) != nil {
			return nil
		}
	}
	if err := s.killReplica(s.Webhooks()[0]); err != nil {
		return err
	}
	_ = fixture.Wait(ctx, 3*time.Second) // the test may end before
	return s.Webhooks()[0].Start()
}

// killReplica kills a replica of the webhook. Requests that overlap with its end may fail.
func (s *stressTest) killReplica(webhook *fixture.Webhook) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	outage := timeSpan{from: time.Now()}
	err := webhook.Kill()
	// Time for the API server to detect the closed connections, also on a busy machine.
	outage.to = time.Now().Add(10 * time.Second)
	s.outages = append(s.outages, outage)
	return err
}

// replaceMachines ends the machine of a node each time its deletion is allowed, and replaces it
// like an operator: it removes the dead member, registers the host as a new Node, and adds and
// promotes a learner. It stops when the context faults ends.
func (s *stressTest) replaceMachines(ctx, faults context.Context, node string, random *rand.Rand) error {
	for {
		select {
		case <-faults.Done():
			return nil
		case <-s.toReplace[node]:
		}
		err := s.replaceMachine(ctx, faults, node, random)
		if faults.Err() != nil && mustWait(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("replacing the machine of %s: %w", node, err)
		}
	}
}

func (s *stressTest) replaceMachine(ctx, faults context.Context, node string, random *rand.Rand) error {
	if err := fixture.Wait(ctx, randomBelow(random, time.Second)); err != nil {
		return err
	}
	dead := map[*stressCluster]*etcd.Member{}
	for _, c := range s.clusters {
		m, err := c.loseMember(node)
		if err != nil {
			return err
		}
		if m != nil {
			dead[c] = m
		}
	}
	if err := s.ReplaceMachine(node); err != nil {
		return err
	}
	for c, m := range dead {
		// The cluster has lost only members whose nodes were deleted.
		err := s.changeMembers(faults, c, func() error {
			return errors.Join(c.checkRead(ctx), c.removeMember(ctx, m))
		})
		if err = errors.Join(err, os.RemoveAll(m.DataDir())); err != nil {
			return err
		}
	}
	made, err := s.register(ctx, node)
	if err != nil {
		return err
	}
	// Every replacement takes the clusters in the same order, so that no two of them wait for each
	// other's learner.
	for _, c := range s.clusters {
		if dead[c] == nil {
			continue
		}
		if err := s.changeMembers(faults, c, func() error { return c.addLearner(ctx, node) }); err != nil {
			return err
		}
	}
	if err := s.StartAgent(ctx, node); err != nil && !apierrors.IsNotFound(err) {
		return err
	} // otherwise the Node is deleted again, and there is no token for the agent
	exists, err := s.waitForAnnouncement(ctx, node, made.UID, slices.Collect(maps.Keys(dead)))
	if err != nil || !exists {
		return err
	}
	for c := range dead {
		if err := s.changeMembers(faults, c, func() error { return s.promoteMember(ctx, c, node) }); err != nil {
			return err
		}
	}
	return nil
}

// changeMembers calls do while all members on live machines are healthy, and again until the change
// is permitted. etcd 3.4 permits one learner at a time. It gives up when the context faults ends.
func (s *stressTest) changeMembers(faults context.Context, c *stressCluster, do func() error) error {
	for {
		err := s.withHealthyMembers(c, do)
		if !mustWait(err) || fixture.Wait(faults, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// mustWait reports whether a change of the membership was not possible, and may be so later.
func mustWait(err error) bool {
	return errors.Is(err, rpctypes.ErrTooManyLearners) || errors.Is(err, errNotPermitted)
}

// waitForAnnouncement waits until a Node names its members of these clusters, and returns
// whether the Node still exists. Before that, its deletion counts as that of an ordinary node
// and is not recorded, so a member that is promoted later would not be known as lost. Therefore
// an operator promotes after the announcement (docs/operations.md, "Adding and replacing
// members").
func (s *stressTest) waitForAnnouncement(
	ctx context.Context, node string, uid types.UID, clusters []*stressCluster,
) (exists bool, err error) {
	what := fmt.Sprintf("node %s to announce its members of %d clusters", node, len(clusters))
	err = s.WaitUntil(ctx, what, func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if exists = err == nil && n.UID == uid; !exists {
			return client.IgnoreNotFound(err)
		}
		announcement := n.Annotations[observation.AnnouncementAnnotation]
		for _, c := range clusters {
			id := fmt.Sprintf("%x", c.memberID(c.member(node)).number)
			if !strings.Contains(announcement, strconv.Quote(id)) {
				return fmt.Errorf("the announcement %q lacks member %s of %s", announcement, id, c.name)
			}
		}
		return nil
	})
	return exists, err
}

// hasNode reports whether no deletion of the Node has been allowed yet.
func (s *stressTest) hasNode(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, exists := s.uids[node]
	return exists
}

// withHealthyMembers calls do while all members on live machines are healthy.
func (s *stressTest) withHealthyMembers(c *stressCluster, do func() error) error {
	c.faultFree.Lock()
	defer c.faultFree.Unlock()
	if err := c.recoverAll(); err != nil {
		return err
	}
	return do()
}

// promoteMember promotes the member on a node's new machine, unless the node has been deleted
// again.
func (s *stressTest) promoteMember(ctx context.Context, c *stressCluster, node string) error {
	if !s.hasNode(node) {
		return nil
	}
	return c.promoteMember(ctx, c.member(node))
}
