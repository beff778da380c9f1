package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// markedWithin is the bound from the start of etcd to the annotation on its Node. Here the event is inotify's: the server
// makes its data directory.
const markedWithin = time.Second

// etcdIsStarted starts a real etcd under the agent's eyes, alone of three: it takes connections and answers nobody until
// the others are there. Its node is marked at once for what the host shows, and verified when it answers.
func etcdIsStarted(t *testing.T, s site) {
	etcd := testenv.NewEtcd(t, testenv.EtcdOptions{Members: 3, TLS: true, BootID: bootID, Node: func(i int) string { return "started-" + string(rune('0'+i)) }})
	for _, m := range etcd.Members() {
		require.NoError(t, m.Kill())
		require.NoError(t, os.RemoveAll(m.DataDir()))
	}
	m := etcd.Member(1)
	_, _, err := s.AddNode(t.Context(), testenv.NodeSpec{Name: m.Node, InternalIP: m.IP, BootID: bootID(1)})
	require.NoError(t, err)
	s.run(m.Node, m.Root)
	member := func(n *corev1.Node) corev1.NodeCondition { return is(n, protect.EtcdMemberCondition) }
	s.until(m.Node, "without a member", func(n *corev1.Node) bool { return member(n).Status == corev1.ConditionFalse })

	var starting *errgroup.Group
	for range 3 { // the machine may be busy with other tests
		starting = &errgroup.Group{}
		began := time.Now()
		starting.Go(func() error { return m.Start(t.Context()) })
		s.until(m.Node, "marked", func(n *corev1.Node) bool {
			return n.Annotations[protect.ClusterAutoscalerAnnotation] == "true" && n.Labels[protect.EtcdMemberLabel] == "true"
		})
		took := time.Since(began)
		t.Logf("marked %s after etcd was started", took.Round(time.Millisecond))
		if took < markedWithin {
			break
		}
		require.NoError(t, m.Kill())
		require.Error(t, starting.Wait())
		require.NoError(t, os.RemoveAll(m.DataDir()))
		s.until(m.Node, "without a member again", func(n *corev1.Node) bool { return member(n).Status == corev1.ConditionFalse })
	}
	require.True(t, m.Running(), "it was never marked within %s", markedWithin)
	s.until(m.Node, "unverified", func(n *corev1.Node) bool { return member(n).Reason == protect.Unverified })
	require.Empty(t, s.node(m.Node).Annotations[protect.AnnouncementAnnotation])
	s.until(m.Node, "saying why", func(n *corev1.Node) bool {
		return strings.Contains(member(n).Message, "did not answer: "+m.ClientURL)
	})

	for _, other := range etcd.Members()[1:] {
		starting.Go(func() error { return other.Start(t.Context()) })
	}
	require.NoError(t, starting.Wait())
	ready := time.Now()
	s.until(m.Node, "verified", func(n *corev1.Node) bool {
		return strings.Contains(member(n).Message, m.HexID()) && member(n).Reason != protect.Unverified && n.Annotations[protect.AnnouncementAnnotation] != ""
	})
	t.Logf("verified %s after etcd was ready", time.Since(ready).Round(time.Millisecond))
}
