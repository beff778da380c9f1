//go:build e2e

package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// deletions deletes one etcd node after the other. Only who may break the glass gets further than one.
func deletions(t *testing.T, c *cluster) {
	first, second := c.worker(1), c.worker(2)
	was := c.etcdCluster(t)
	// Not at the first attempt if the agents are being asked just then: a dry run asks nobody, and does not wait for them.
	c.eventually(t, "a dry run is allowed", soon, func(ctx context.Context) (bool, string) {
		out, err := c.try(ctx, c.tool("kubectl"), "delete", "node", first, "--dry-run=server")
		return err == nil, out
	})
	require.Equal(t, was.Spec.Ledger, c.etcdCluster(t).Spec.Ledger, "a dry run must not be granted")
	require.Empty(t, c.etcdCluster(t).Spec.Grants)

	uid := c.node(t, first).UID
	c.allowed(t, first)
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 1)
	require.Equal(t, uid, grants[0].NodeUID)
	require.Equal(t, "kubernetes-admin", grants[0].User)

	for _, how := range [][]string{{"--dry-run=server"}, nil} {
		c.denied(t, []string{
			"deleting node " + second + " would cost etcd cluster " + was.Name + " its quorum: of 3 voters 2 must live, and only 1 would be left that is proven healthy",
			"given up: the deletion of its node " + first + " was allowed to kubernetes-admin at ", "on node " + c.worker(3) + ": healthy",
		}, append([]string{"delete", "node", second}, how...)...)
	}
	c.glass(t, second)
	c.back(t, first, second)
	c.healthy(t, 3)
}

// glass breaks the glass for a node: who lacks the verb cannot, who has it can.
func (c *cluster) glass(t *testing.T, name string) {
	t.Helper()
	c.kubectl(t, "create", "clusterrole", "e2e-patches-nodes", "--verb=get,patch", "--resource=nodes")
	c.kubectl(t, "create", "clusterrolebinding", "e2e-patches-nodes", "--clusterrole=e2e-patches-nodes", "--user=alice")
	defer c.kubectl(t, "delete", "clusterrolebinding,clusterrole", "e2e-patches-nodes")
	value := fmt.Sprintf(`{"uid":%q,"until":%q,"reason":"an exercise"}`, c.node(t, name).UID, time.Now().UTC().Add(20*time.Minute).Format(time.RFC3339))
	annotate := []string{"annotate", "--overwrite", "node", name, protect.BreakGlassAnnotation + "=" + value}
	c.denied(t, []string{`only users with the verb "breakglass"`}, append(annotate, "--as=alice")...) // once her role is known
	require.Contains(t, c.refused(t, "label", "node", name, protect.EtcdMemberLabel+"-", "--as=alice"), `only users with the verb "breakglass"`)

	c.kubectl(t, annotate...)
	c.allowed(t, name)
	grants := c.etcdCluster(t).Spec.Grants
	require.Len(t, grants, 2)
	for _, g := range grants {
		require.Equal(t, g.Node == name, g.BreakGlass)
	}
}

// allowed deletes a node, which has to be allowed, if not at the first attempt: an election may be on.
func (c *cluster) allowed(t *testing.T, name string) {
	t.Helper()
	c.eventually(t, "node "+name+" may be deleted", long, func(ctx context.Context) (bool, string) {
		out, err := c.try(ctx, c.tool("kubectl"), "delete", "node", name)
		return err == nil, out
	})
}

// gone stops a member, removes it, and deletes its node. Then a member comes in its place.
func gone(t *testing.T, c *cluster) {
	ours, stopped := c.worker(1), c.worker(3)
	c.on(t, stopped, "systemctl stop etcd")
	id := c.etcd.id(t, 3)
	c.denied(t, []string{
		"of 3 voters 2 must live, and only 1 would be left that is proven healthy",
		`etcd3 \(` + id + `\) on node ` + stopped + `: not proven healthy: `, "etcdctl member remove " + id,
	}, "delete", "node", ours)
	require.Equal(t, "true", c.node(t, stopped).Labels[protect.EtcdMemberLabel])

	c.etcd.ctl(t, 1, "member remove "+id)
	c.until(t, stopped, "is an ordinary node again", long, unmarked)
	c.denied(t, []string{"of 2 voters 2 must live, and only 1 would be left"}, "delete", "node", ours)
	c.allowed(t, stopped)
	c.on(t, stopped, "systemctl disable etcd 2>/dev/null; rm -rf /var/lib/etcd")
	c.back(t, stopped)
	c.until(t, stopped, "has nothing of ours", soon, unmarked)

	c.etcd.ctl(t, 1, "member add etcd3 --peer-urls=https://"+c.etcd.address(t, 3)+":2380")
	c.etcd.layOut(t, 3, "existing", 1, 2, 3)
	c.on(t, stopped, "systemctl start etcd")
	c.until(t, stopped, "is protected again", soon, marked)
	c.healthy(t, 3)
}

// marked and unmarked say whether a Node has all of our marks, or none.
func marked(n *corev1.Node) bool {
	return n.Labels[protect.EtcdMemberLabel] == "true" && n.Annotations[protect.ClusterAutoscalerAnnotation] == "true" &&
		n.Annotations[protect.KarpenterAnnotation] == "true" && n.Annotations[protect.EscalatorAnnotation] != "" &&
		n.Annotations[protect.CastAIAnnotation] == "true" && conditionIs(n, protect.EtcdMemberCondition, corev1.ConditionTrue)
}

func unmarked(n *corev1.Node) bool {
	for _, key := range []string{
		protect.ClusterAutoscalerAnnotation, protect.KarpenterAnnotation, protect.EscalatorAnnotation, protect.CastAIAnnotation,
		protect.AnnouncementAnnotation, protect.BecauseAnnotation, protect.MarksAnnotation, protect.UnverifiedAnnotation,
	} {
		if _, there := n.Annotations[key]; there {
			return false
		}
	}
	return n.Labels[protect.EtcdMemberLabel] == "" && conditionIs(n, protect.EtcdMemberCondition, corev1.ConditionFalse)
}

// storm deletes all nodes from two terminals at once.
func storm(t *testing.T, c *cluster) {
	before := c.nodes(t)
	group, ctx := errgroup.WithContext(t.Context())
	said := make([]string, 2)
	for i := range said {
		group.Go(func() error {
			var err error
			if said[i], err = c.try(ctx, c.tool("kubectl"), "delete", "nodes", "--all"); err == nil {
				return fmt.Errorf("all nodes were deleted: %s", said[i])
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	left := c.nodes(t)
	var lost, lostEtcd []string
	for name := range before {
		if _, there := left[name]; !there {
			lost = append(lost, name)
			if name != c.worker(4) {
				lostEtcd = append(lostEtcd, name)
			}
		}
	}
	require.Contains(t, left, c.controlPlane(), "its etcd has one voter")
	require.Contains(t, lost, c.worker(4), "an ordinary node is nobody's to keep")
	require.Len(t, lostEtcd, 1, "of three voters one may go: %s", strings.Join(said, "\n"))
	require.Contains(t, strings.Join(said, "\n"), "would cost etcd cluster")
	for number := 1; number <= 3; number++ {
		if c.worker(number) != lostEtcd[0] {
			c.etcd.ctl(t, number, "put e2e survives")
			break
		}
	}
	c.back(t, lost...)
	c.healthy(t, 3)
}
