package plugin

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestCommands runs the commands against one real API server, one after the other: first those that
// change something.
func TestCommands(t *testing.T) {
	server := apiserver.NewInstalled(t)
	t.Run("changes", func(t *testing.T) { testChanges(t, server) })
	for i, test := range []struct {
		name string
		run  func(*testing.T, *reviewedCluster)
	}{
		{"can-remove", canRemove},
		{"can-remove without a webhook", canRemoveWithoutWebhook},
		{"status", status},
		{"status --watch", statusWatch},
		{"why", why},
		{"plan", plan},
		{"what-if", whatIf},
		{"settle with a leader", settleWithLeader},
		{"stop the webhook: asked", stopWhenAsked},
		{"stop the webhook: declined", stopDeclined},
		{"stop the webhook: script", stopScript},
		{"stop the webhook: interrupted", stopInterrupted},
		{"stop the webhook: not started", stopNotStarted},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newReviewedCluster(t, server, i+1)) })
	}
}
