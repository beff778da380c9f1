package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/internal/operator/plugin"
)

// checkBreakGlassCommand overrides a refusal of the running webhook with the plugin of kubectl.
func (f *fixture) checkBreakGlassCommand(t *testing.T) {
	t.Helper()
	lost := f.addNode(t, "etcd-7", etcdLabel())
	var out bytes.Buffer
	code := plugin.Execute(t.Context(), plugin.Streams{In: strings.NewReader(""), Out: &out, ErrOut: &out}, "test",
		[]string{
			"--kubeconfig=" + f.Kubeconfig(), "break-glass", "etcd-7", "--reason=the machine is gone", "--and-delete", "--yes",
		})
	require.Equal(t, cli.ExitSuccess, code, out.String())
	require.Contains(t, out.String(), "The deletion of node etcd-7 is refused now:\n  node etcd-7 ")
	require.NotContains(t, out.String(), "denied the request")
	require.NotContains(t, out.String(), "is removed", "the webhook answers, so the label stays")
	require.Contains(t, out.String(), "node etcd-7: deleted\n")
	require.Contains(t, f.waitForEvent(t, lost, "DeletionAllowed"), "the machine is gone")
}
