package manifests_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// testVersionSkew applies an earlier definition of EtcdCluster, the current one, and the earlier
// one again, as an upgrade and a rollback do. docs/support.md describes the consequences.
func testVersionSkew(t *testing.T, server *apiserver.Server) {
	const (
		earlier = "testdata/crd-before-drains.yaml"
		grants  = "jsonpath={.items[0].spec.grants}"
		object  = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster",` +
			`"metadata":{"name":"cdf818194e3a8c32"}`
		deletion = `{"node":"w1","nodeUID":"u1","members":["a"],"time":"2026-01-02T03:04:05Z"}`
		noDoor   = `{"members":["a"],"node":"w1","nodeUID":"u1"}`
		drain    = `{"drain":{"time":"2026-01-02T03:04:05Z"},"members":["a"],"node":"w1","nodeUID":"u1"}`
	)
	write := func(name, text string) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := server.Kubectl(t.Context(), args...)
		require.NoError(t, err)
		return out
	}
	define := func(file string) {
		t.Helper()
		kubectl("apply", "--server-side", "--force-conflicts", "-f", file)
		kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/etcdclusters.holdfast.dev")
	}
	var definition string
	for _, document := range kustomized(t, "base") {
		if identity(t, document) == "CustomResourceDefinition/etcdclusters.holdfast.dev" {
			definition = document
		}
	}
	current := write("crd.yaml", definition)
	withDrain := write("drain.json", object+`,"spec":{"ledger":1,"grants":[`+drain+`]}}`)

	define(earlier)
	kubectl("create", "--validate=strict", "-f",
		write("deletion.json", object+`,"spec":{"ledger":0,"grants":[`+deletion+`]}}`))
	_, err := server.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "--force-conflicts",
		"-f", withDrain)
	require.ErrorContains(t, err, "field not declared in schema", "an apply patch with a newer field is refused")

	define(current)
	require.JSONEq(t, "["+noDoor+"]", kubectl("get", "etcdclusters", "-o", grants), "upgrade keeps the grant")
	require.Eventually(t, func() bool {
		_, err := server.Kubectl(t.Context(), "replace", "--validate=strict", "-f", withDrain)
		return err == nil
	}, soon, poll, "the API server takes the new schema into use a moment later")
	require.JSONEq(t, "["+drain+"]", kubectl("get", "etcdclusters", "-o", grants))

	define(earlier)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, err := server.Kubectl(t.Context(), "get", "etcdclusters", "-o", grants)
		require.NoError(c, err)
		require.JSONEq(c, "["+noDoor+"]", out, "an earlier definition hides newer fields")
	}, soon, poll)
	define(current)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		out, err := server.Kubectl(t.Context(), "get", "etcdclusters", "-o", grants)
		require.NoError(c, err)
		require.JSONEq(c, "["+drain+"]", out, "they return unless the object was written meanwhile")
	}, soon, poll)
	kubectl("delete", "etcdclusters", "--all")
}
