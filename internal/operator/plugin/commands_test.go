package plugin

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestCommands runs the commands against one real API server, one after the other. Those that
// uninstall Holdfast are the last ones.
func TestCommands(t *testing.T) {
	t.Parallel()
	server := apiserver.NewInstalled(t)
	t.Run("changes", func(t *testing.T) { testChanges(t, server) })
	t.Run("reviewed", func(t *testing.T) {
		c := newReviewedCluster(t, server, 1)
		for _, test := range []struct {
			name string
			run  func(*testing.T, *reviewedCluster)
		}{
			{"can-remove without a webhook", canRemoveWithoutWebhook},
			{"status", status},
			{"status --watch", statusWatch},
			{"can-remove", canRemove},
			{"plan", plan},
			{"why", why},
			{"what-if", whatIf},
			{"settle with a leader", settleWithLeader},
		} {
			t.Run(test.name, func(t *testing.T) {
				for i := range c.Members {
					c.setHealth(i, true)
				}
				test.run(t, c)
			})
		}
	})
	t.Run("stop the webhook", func(t *testing.T) { stopWebhook(t, newReviewedCluster(t, server, 2)) })
	t.Run("uninstall", func(t *testing.T) { testUninstall(t, server) })
}
