package uninstall

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScriptOfUnreadNodes: a script ends if it cannot read the Nodes. It does not take them for
// ones without a hold, and goes on to delete what would open them.
func TestScriptOfUnreadNodes(t *testing.T) {
	for kubectl, isRead := range map[string]bool{"true": true, "false": false, "echo": false} {
		var script strings.Builder
		(&uninstaller{Options: Options{Out: &script, Kubectl: kubectl}}).printNodesSince()
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", script.String()).CombinedOutput()
		require.Equal(t, isRead, err == nil, "%s: %s", kubectl, out)
	}
}
