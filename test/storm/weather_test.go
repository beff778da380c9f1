package storm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// hurt kills members of a cluster and makes them hang, and lets them go on a little later, until the weather ends.
func (s *storm) hurt(weather context.Context, c *cluster, random *rand.Rand) error {
	for pause(weather, upTo(random, time.Second)) == nil {
		members := c.all()
		m := members[random.IntN(len(members))]
		c.calm.Lock()
		err := c.harm(m, random.IntN(2) == 0)
		c.calm.Unlock()
		if err != nil {
			return fmt.Errorf("hurting %s: %w", m.Name, err)
		}
		_ = pause(weather, upTo(random, 2*time.Second)) // healed in any case
		if err := c.healSafely(m); err != nil {
			return err
		}
	}
	return nil
}

// ambush hurts a member and asks for the deletion of another's node the moment after: whoever answers from what was seen
// before is wrong.
func (s *storm) ambush(ctx context.Context, node string, random *rand.Rand) error {
	on := slices.DeleteFunc(slices.Clone(s.clusters), func(c *cluster) bool { return c.member(node) == nil })
	if len(on) == 0 {
		return s.deleteEtcd(ctx, node)
	}
	c := on[random.IntN(len(on))]
	members := slices.DeleteFunc(c.all(), func(m *testenv.Member) bool { return m.Node == node })
	if len(members) == 0 || !c.calm.TryLock() {
		return s.deleteEtcd(ctx, node)
	}
	m := members[random.IntN(len(members))]
	err := c.harm(m, random.IntN(2) == 0)
	c.calm.Unlock()
	if err == nil {
		err = pause(ctx, 2*slack)
	}
	if err == nil {
		err = s.deleteEtcd(ctx, node)
	}
	return errors.Join(err, c.healSafely(m))
}

// crash kills a webhook when half of the deletions have been asked for, and starts it again: the first one, which leads.
func (s *storm) crash(ctx context.Context, left *atomic.Int64) error {
	for left.Load() > deletions/2 {
		if pause(ctx, 50*time.Millisecond) != nil {
			return nil
		}
	}
	webhook := s.Webhooks()[0]
	s.mu.Lock()
	s.outages = append(s.outages, span{from: time.Now()})
	s.mu.Unlock()
	if err := webhook.Kill(); err != nil {
		return err
	}
	s.mu.Lock()
	s.outages[0].to = time.Now().Add(time.Second) // until the API server has noticed that its connection is gone
	s.mu.Unlock()
	_ = pause(ctx, 3*time.Second) // the storm may end before
	return webhook.Start()
}

// keep lets the machine of a node die whenever its deletion was allowed, and puts another in its place, as an operator
// does: the dead member is removed, the host registers as a new Node, the new member joins as a learner and is promoted.
// It ends when the weather does.
func (s *storm) keep(ctx, weather context.Context, node string, random *rand.Rand) error {
	for {
		select {
		case <-weather.Done():
			return nil
		case <-s.condemned[node]:
		}
		if err := s.replace(ctx, node, random); err != nil {
			return fmt.Errorf("after the machine of %s had died: %w", node, err)
		}
	}
}

func (s *storm) replace(ctx context.Context, node string, random *rand.Rand) error {
	if err := pause(ctx, upTo(random, time.Second)); err != nil {
		return err
	}
	dead := map[*cluster]*testenv.Member{}
	for _, c := range s.clusters {
		m, err := c.die(node)
		if err != nil {
			return err
		}
		if m != nil {
			dead[c] = m
		}
	}
	if err := s.Scrap(node); err != nil {
		return err
	}
	for c, m := range dead {
		// Here nothing but deletions has taken members from the cluster.
		if err := s.calmly(c, func() error { return errors.Join(c.read(ctx), c.remove(ctx, m)) }); err != nil {
			return err
		}
	}
	made, err := s.register(ctx, node)
	if err != nil {
		return err
	}
	for c := range dead {
		if err := s.calmly(c, func() error { return c.join(ctx, node) }); err != nil {
			return err
		}
	}
	if err := s.StartAgent(ctx, node); err != nil && !apierrors.IsNotFound(err) {
		return err
	} // else the Node is gone again, and the agent has no token for it
	if there, err := s.announced(ctx, node, made.UID, slices.Collect(maps.Keys(dead))); err != nil || !there {
		return err
	}
	for c := range dead {
		if err := s.calmly(c, func() error { return s.promote(ctx, c, node) }); err != nil {
			return err
		}
	}
	return nil
}

// announced waits until a Node names its members of these clusters, and says whether it is still there then. Until it does,
// its deletion is that of an ordinary node: it leaves nothing behind by which a member that is promoted later would be known
// to be lost. So the operator promotes no sooner (docs/operations.md, "Adding and replacing members").
func (s *storm) announced(ctx context.Context, node string, uid types.UID, clusters []*cluster) (there bool, err error) {
	err = s.Until(ctx, fmt.Sprintf("node %s to name its members of %d clusters", node, len(clusters)), func(ctx context.Context) error {
		n, err := s.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if there = err == nil && n.UID == uid; !there {
			return client.IgnoreNotFound(err)
		}
		said := n.Annotations[protect.AnnouncementAnnotation]
		for _, c := range clusters {
			if id := fmt.Sprintf("%x", c.id(c.member(node)).number); !strings.Contains(said, strconv.Quote(id)) {
				return fmt.Errorf("it says %q, member %s of %s is not among them", said, id, c.name)
			}
		}
		return nil
	})
	return there, err
}

// there says whether the Node is there as far as is known: nobody has been allowed to delete it.
func (s *storm) there(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.uids[node]
	return there
}

// calmly does something to a cluster while all its members are well but those whose machines have died.
func (s *storm) calmly(c *cluster, do func() error) error {
	c.calm.Lock()
	defer c.calm.Unlock()
	if err := c.healAll(); err != nil {
		return err
	}
	return do()
}

// promote makes a voter of the member on a node's new machine, unless that is condemned already.
func (s *storm) promote(ctx context.Context, c *cluster, node string) error {
	if !s.there(node) {
		return nil
	}
	return c.promote(ctx, c.member(node))
}
