package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// TestRepeat decides whether the grant of an earlier review answers a review of the same Node.
func TestRepeat(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		cluster  func(*quorumtest.Cluster)
		grant    func(*v1alpha1.Grant)
		request  func(*quorum.Request)
		age      time.Duration
		repeated bool
	}{
		"same user, at once":          {repeated: true},
		"same user, 59 s later":       {age: 59 * time.Second, repeated: true},
		"same user, 60 s later":       {age: quorum.RepeatWithin},
		"grant from the future":       {age: -time.Second},
		"same version of the Node":    {request: func(r *quorum.Request) { r.Version = "7" }},
		"no version of the Node":      {request: func(r *quorum.Request) { r.Version = "" }},
		"grant of an earlier release": {grant: func(g *v1alpha1.Grant) { g.NodeVersion = "" }},
		"another user":                {request: func(r *quorum.Request) { r.User = "bob" }},
		"no user":                     {request: func(r *quorum.Request) { r.User = "" }},
		"tombstone":                   {grant: func(g *v1alpha1.Grant) { g.User = "" }},
		"tombstone and no user": {
			grant:   func(g *v1alpha1.Grant) { g.User = "" },
			request: func(r *quorum.Request) { r.User = "" },
		},
		"break-glass grant":    {grant: func(g *v1alpha1.Grant) { g.BreakGlass = true }},
		"break-glass override": {request: func(r *quorum.Request) { r.BreakGlass = &quorum.BreakGlass{UID: "u1"} }},
		"drain":                {request: func(r *quorum.Request) { r.Drain = true }},
		"grant of a drain":     {grant: func(g *v1alpha1.Grant) { g.Reason = v1alpha1.GrantDrain }},
		"deletion after a drain": {
			grant: func(g *v1alpha1.Grant) { g.Drained = new(metav1.NewTime(at.Add(-time.Second))) }, repeated: true,
		},
		"drain after the deletion":       {grant: func(g *v1alpha1.Grant) { g.Drained = &g.Time }},
		"dry run":                        {request: func(r *quorum.Request) { r.DryRun = true }},
		"F46 another member was removed": {cluster: func(c *quorumtest.Cluster) { c.Removed(2) }},
		"a learner was promoted":         {grant: func(g *v1alpha1.Grant) { g.Voters = g.Voters[:2] }},
		"lists differed":                 {grant: func(g *v1alpha1.Grant) { g.Voters = nil }},
		"no agent answers, a member may have been removed": {
			cluster: func(c *quorumtest.Cluster) { c.Removed(2).Silent(0, 1, 2) }, repeated: true,
		},
		"another Node UID":           {request: func(r *quorum.Request) { r.UID = "u1-again" }},
		"grant for another Node":     {grant: func(g *v1alpha1.Grant) { g.NodeUID = "u2" }},
		"a member elsewhere is dead": {cluster: func(c *quorumtest.Cluster) { c.Dead(1) }, repeated: true},
		"another node was granted":   {cluster: func(c *quorumtest.Cluster) { c.Granted(1) }, repeated: true},
		"no agent answers":           {cluster: func(c *quorumtest.Cluster) { c.Silent(0, 1, 2) }, repeated: true},
		"a member that the grant lacks": {
			cluster: func(c *quorumtest.Cluster) { c.Rebound(1, 0) },
		},
		"a member at the address of the node": {
			cluster: func(c *quorumtest.Cluster) {
				c.Everywhere(1, func(m *v1alpha1.MemberStatus) { m.PeerURLs = []string{"https://10.0.0.1:2380"} })
			},
			request: func(r *quorum.Request) { r.Addresses = []string{"10.0.0.1"} },
		},
		"a member that may have joined again": {
			cluster: func(c *quorumtest.Cluster) {
				c.Removed(0)
				for o := range c.Cluster.Status.Observations {
					list := &c.Cluster.Status.Observations[o]
					list.Members = append(list.Members, quorumtest.Member(5))
				}
			},
		},
		"a member that the grant lacks is announced": {
			request: func(r *quorum.Request) {
				r.Announced = append(r.Announced, r.Announced[0])
				r.Announced[1].Member = "f"
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, req := quorumtest.Voters(3), quorumtest.Deletion(0)
			req.User, req.Version = "alice", "8"
			grant := v1alpha1.Grant{
				NodeUID: req.UID, Node: req.Node, Members: []v1alpha1.MemberID{"a"}, Time: metav1.NewTime(at), User: "alice",
				NodeVersion: "7", Voters: []v1alpha1.MemberID{"c", "b", "a"},
			}
			if c.cluster != nil {
				c.cluster(cluster)
			}
			if c.grant != nil {
				c.grant(&grant)
			}
			if c.request != nil {
				c.request(&req)
			}
			cluster.Cluster.Spec.Grants = append(cluster.Cluster.Spec.Grants, grant)
			v, isRepeated := quorum.Repeat(cluster.View, req, at.Add(c.age))
			require.Equal(t, c.repeated, isRepeated)
			require.Equal(t, c.repeated, v.Allowed)
			if c.repeated {
				require.Equal(t, quorum.Repeated, v.Reason)
				require.Equal(t, grant.Members, v.Members)
				require.Contains(t, v.Message, "by alice was allowed at 2026-05-01T12:00:00Z")
			}
		})
	}
}

// TestRepeatEndsBeforeTheGrant: the last DELETE that a grant answers is committed, at the latest,
// before the grant can be resolved because the Node still exists, or by hand.
func TestRepeatEndsBeforeTheGrant(t *testing.T) {
	const requestTimeout, clocks = time.Minute, time.Minute
	require.GreaterOrEqual(t, quorum.ResolveByHandAfter, quorum.RepeatWithin+requestTimeout+clocks)
	require.Greater(t, quorum.ResolvePresentAfter, quorum.RepeatWithin+requestTimeout+clocks)
}
