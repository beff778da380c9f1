package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/machine"
)

// TestHooks runs the program against an API server without Machines, and then with some.
func TestHooks(t *testing.T) {
	server := apiserver.New(t)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), server.Kubeconfig(), &out))
	require.Empty(t, out.String())

	apiserver.InstallMachines(t, server)
	for name, annotations := range map[string]string{
		"hooked": `{"` + machine.HookAnnotation + `":"holdfast","a":"b"}`,
		"other":  `{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup":""}`,
	} {
		file := filepath.Join(t.TempDir(), "machine.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"apiVersion":"cluster.x-k8s.io/v1beta2","kind":"Machine",
			"metadata":{"namespace":"default","name":"`+name+`","annotations":`+annotations+`}}`), 0o600))
		_, err := server.Kubectl(t.Context(), "create", "-f", file)
		require.NoError(t, err)
	}
	require.NoError(t, run(t.Context(), server.Kubeconfig(), &out))
	require.Equal(t, "Machine default/hooked: hook removed\n", out.String())
	for name, want := range map[string]string{
		"hooked": `{"a":"b"}`, "other": `{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/kcp-cleanup":""}`,
	} {
		got, err := server.Kubectl(t.Context(), "get", "machines", name, "-o", "jsonpath={.metadata.annotations}")
		require.NoError(t, err)
		require.JSONEq(t, want, got)
	}
	out.Reset()
	require.NoError(t, run(t.Context(), server.Kubeconfig(), &out))
	require.Empty(t, out.String())
}
