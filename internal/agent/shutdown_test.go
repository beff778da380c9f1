package agent

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// hostGoesDown: the node is cordoned before the host may go down, and not a moment later is the host let go.
func hostGoesDown(t *testing.T, c cluster) {
	n := bornHeld("going-down")
	c.register(t, n)
	r := start(t, c, n.Name, func(r *rig) { r.facts = open() })
	c.until(t, r.name, "released", released)
	require.Empty(t, r.letGo)

	var refused atomic.Int64
	r.fault.set(func(req *http.Request) int {
		if req.Method == http.MethodPatch && refused.Add(1) < 3 {
			return http.StatusInternalServerError
		}
		return 0
	})
	r.host(func(r *rig) { r.facts.GoingDown = true })
	select {
	case cordoned := <-r.letGo:
		require.True(t, cordoned, "the host is let go once the API server has the cordon, and not before")
	case <-time.After(soon):
		require.Fail(t, "the host was never let go")
	}
	c.until(t, r.name, "held with a reason", func(n *corev1.Node) bool {
		return condition(n, readiness.NetworkHeld).Reason == readiness.GoingDown && status(n, corev1.NodeNetworkUnavailable) != corev1.ConditionTrue
	})

	r.host(func(r *rig) { r.facts.GoingDown = false })
	c.until(t, r.name, "released, as the shutdown was called off", released)
	r.host(func(r *rig) { r.facts.GoingDown = true })
	require.True(t, <-r.letGo, "the next shutdown is waited with too")
	require.Empty(t, r.letGo, "once is enough")
}
