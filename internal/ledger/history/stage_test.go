package history

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// stage is a world in which a test says what happens, and everybody else does their work at once.
type stage struct {
	*world
	t *testing.T
}

// onStage plays a scene with clusters of these sizes on so many machines. Whatever is allowed is judged by the truth, as in
// a random history.
func onStage(t *testing.T, hosts int, clusters []int, scene func(*stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := profile{hosts: hosts, clusters: clusters, bound: true}
		s := &stage{t: t, world: newWorld(t.Context(), replay(nil), p, true)}
		defer func() {
			s.end()
			if s.failed() || t.Failed() {
				t.Errorf("%s\n%s", s.failure, strings.Join(s.trace, "\n"))
			}
		}()
		s.calm(10 * time.Second)
		scene(s)
		s.note()
	})
}

// try sends one DELETE, and waits for its answer.
func (s *stage) try(h *host) *deletion {
	s.t.Helper()
	s.note()
	d := s.delete(h, false, false)
	for d.review != nil && !s.failed() {
		s.calm(100 * time.Millisecond)
	}
	require.False(s.t, s.failed(), s.failure)
	return d
}

// refused expects a DELETE to be refused.
func (s *stage) refused(h *host, says string) {
	s.t.Helper()
	d := s.try(h)
	require.False(s.t, d.passed, "Node %s was allowed: %s", h.name, d.answer)
	require.Contains(s.t, d.answer, says)
}

// allows expects a DELETE to be allowed, and leaves it under way.
func (s *stage) allows(h *host) *deletion {
	s.t.Helper()
	d := s.try(h)
	require.True(s.t, d.passed, d.answer)
	return d
}

// patiently deletes a Node as kubespray does, ten times three seconds apart, and sees it gone.
func (s *stage) patiently(h *host) {
	s.t.Helper()
	s.allowedWithin(h, 30*time.Second)
}

// allowedWithin tries every three seconds.
func (s *stage) allowedWithin(h *host, limit time.Duration) {
	s.t.Helper()
	begun := time.Now()
	for {
		d := s.try(h)
		if d.passed {
			s.commit(d)
			s.note()
			return
		}
		require.Less(s.t, time.Since(begun), limit, "Node %s is still refused: %s", h.name, d.answer)
		s.calm(3 * time.Second)
	}
}

// dies terminates a machine.
func (s *stage) dies(h *host) {
	s.kill(h)
	s.note()
}

// removed takes the host's member out of the list.
func (s *stage) removed(h *host) {
	s.t.Helper()
	for _, e := range s.etcds {
		if m := e.of(h); m != nil {
			require.True(s.t, e.remove(m), "etcd does not let member %s go", m.id)
			m.wiped = true
		}
	}
	s.note()
}

// comes is a new machine with a new member, which joins as a learner and is promoted.
func (s *stage) comes(name string) {
	s.t.Helper()
	s.joinsOn(s.etcds[0], s.addHost(name), true)
}

func (s *stage) joinsOn(e *etcd, h *host, promoted bool) *member {
	s.t.Helper()
	m, ok := e.join(h, true)
	require.True(s.t, ok)
	m.started, m.running = true, true
	s.note()
	s.calm(5 * time.Second)
	if promoted {
		require.True(s.t, e.promote(m))
		s.note()
		s.calm(5 * time.Second)
	}
	return m
}

func (s *stage) edit(h *host, edit func(*corev1.Node)) {
	s.t.Helper()
	_, err := s.api.editNode(h.name, edit)
	require.NoError(s.t, err)
	s.kubelets()
}

// grants counts the open grants of a cluster.
func (s *stage) grants(e *etcd) int {
	s.t.Helper()
	c, err := s.api.cluster(string(e.id))
	require.NoError(s.t, err)
	return len(c.Spec.Grants)
}

// newNames are names of machines that are to come.
func newNames(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint("new", i))
	}
	return all
}
