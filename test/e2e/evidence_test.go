//go:build e2e

package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// saveEvidence writes what is needed to understand a failure into a directory, and says which.
func (c *cluster) saveEvidence(ctx context.Context, t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-e2e-"+time.Now().Format("150405")+"-")
	if err != nil {
		t.Logf("nothing is saved: %v", err)
		return
	}
	for file, args := range map[string][]string{
		"nodes.txt":        {"describe", "nodes"},
		"nodes.yaml":       {"get", "nodes", "-o", "yaml"},
		"pods.txt":         {"get", "pods", "-A", "-o", "wide"},
		"events.txt":       {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"etcdclusters.yml": {"get", "etcdclusters", "-o", "yaml"},
		"agents.log":       {"-n", namespace, "logs", "-l", "app.kubernetes.io/name=holdfast-agent", "--prefix", "--tail=-1", "--max-log-requests=20"},
		"webhook.log":      {"-n", namespace, "logs", "-l", "app.kubernetes.io/name=holdfast-webhook", "--prefix", "--tail=-1"},
	} {
		out, err := c.try(ctx, c.tool("kubectl"), args...)
		if err != nil {
			out += "\n" + err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(out), 0o600); err != nil {
			t.Logf("%s is not saved: %v", file, err)
		}
		if lines := strings.Split(strings.TrimSpace(out), "\n"); file == "agents.log" || file == "webhook.log" || file == "events.txt" {
			t.Logf("the end of %s:\n%s", file, strings.Join(lines[max(0, len(lines)-30):], "\n"))
		}
	}
	t.Logf("what there was to see is saved in %s", dir)
}
