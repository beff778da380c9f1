package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// look asks the agents, and then brings grants and bindings up to date from their answers and from Nodes read now.
func (l *Leader) look(ctx context.Context, c *v1alpha1.EtcdCluster, n census, scene string, m *memory) error {
	question, err := l.book.asker.ask(ctx, c)
	if err != nil {
		return err
	}
	if m.ask != nil {
		l.book.asker.release(c.UID, m.ask)
	}
	m.ask, m.scene = question, scene
	l.await(ctx, question, n)

	s := l.book.asker.sight(question)
	nodes := l.book.nodes(ctx, append(nodesOf(s.cluster), n.announcers(s.cluster)...))
	view := protect.View{
		Cluster: s.cluster, Asked: s.asked, Nodes: statesOf(nodes), MinRemainingTolerance: l.book.tolerance,
	}
	m.remember(view, l.o.Now(), 2*l.o.CalmTick)
	claims, err := n.claims(nodes)
	if err == nil {
		err = l.write(ctx, view, claims, m)
	}
	if err != nil {
		m.scene = "" // Not done: the next round looks again.
	}
	return l.again(err)
}

// write brings the object up to date. Tombstones come before bindings: a member whose Node is gone must be under a grant
// before the binding that tells so may change.
func (l *Leader) write(ctx context.Context, v protect.View, claims []protect.NodeClaim, m *memory) (err error) {
	if v.Cluster, err = l.tombstones(ctx, v); err != nil {
		return err
	}
	if v.Cluster, err = l.bind(ctx, v, claims, m); err != nil {
		return err
	}
	return l.settle(ctx, v, m)
}

// again asks for another round at once if somebody else was faster, which is no error; others it passes on.
func (l *Leader) again(err error) error {
	if errors.Is(err, errConflict) {
		l.rouse()
		return nil
	}
	return err
}

// await waits until everybody who can be expected to answer has done so, or until the time is up.
func (l *Leader) await(ctx context.Context, question *ask, n census) {
	waiting, cancel := context.WithTimeout(ctx, l.book.wait)
	defer cancel()
	for {
		s := l.book.asker.sight(question)
		if allAnswered(s, n) {
			return
		}
		select {
		case <-s.changed:
		case <-waiting.Done():
			return
		}
	}
}

// allAnswered says whether every observer with a living Node has answered: those that are bound, and those that
// announce a member and may be bound next.
func allAnswered(s sight, n census) bool {
	expected := n.announcers(s.cluster)
	for _, b := range s.cluster.Spec.Members {
		if node, ok := n[b.Node]; ok && node.UID == b.NodeUID {
			expected = append(expected, b.Node)
		}
	}
	for _, name := range expected {
		if !slices.ContainsFunc(s.cluster.Status.Observations, func(o v1alpha1.Observation) bool {
			return o.Node == name && o.NodeUID == n[name].UID && slices.Contains(s.asked, o.Nonce)
		}) {
			return false
		}
	}
	return true
}

// someoneLeft says whether an answer to the last question lacks a bound member.
func someoneLeft(c *v1alpha1.EtcdCluster, asked []string) bool {
	for _, o := range c.Status.Observations {
		if !o.Linearizable || !slices.Contains(asked, o.Nonce) {
			continue
		}
		for _, b := range c.Spec.Members {
			if !slices.ContainsFunc(o.Members, func(m v1alpha1.MemberStatus) bool { return m.ID == b.MemberID }) {
				return true
			}
		}
	}
	return false
}

// sceneOf puts what a look would act on into one comparable word. Health, nonces and times are left out: they change
// with every look, and would make each one the reason for the next.
func sceneOf(c *v1alpha1.EtcdCluster, n census, asked []string) string {
	type observer struct {
		Node, UID, Member string
	}
	scene := struct {
		Bindings   []v1alpha1.Binding
		Grants     []v1alpha1.Grant
		Observers  []observer
		Nodes      []traits
		Left       bool
		Announcers []string
	}{Bindings: c.Spec.Members, Grants: c.Spec.Grants, Left: someoneLeft(c, asked), Announcers: n.announcers(c)}
	for _, o := range c.Status.Observations {
		scene.Observers = append(scene.Observers, observer{o.Node, string(o.NodeUID), string(o.LocalMember)})
	}
	names := append(nodesOf(c), scene.Announcers...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if node, ok := n[name]; ok {
			scene.Nodes = append(scene.Nodes, traitsOf(node.Node))
		}
	}
	word, err := json.Marshal(scene)
	if err != nil {
		return time.Now().String() // Nothing in it can fail to encode; if it does, every scene is a new one.
	}
	return string(word)
}
