package plugin

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestCommands runs the commands that read against a real API server, one after the other.
func TestCommands(t *testing.T) {
	server := apiserver.NewInstalled(t)
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
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newReviewedCluster(t, server, i+1)) })
	}
}
