package plugin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
)

func canRemove(t *testing.T, c *reviewedCluster) {
	c.worker(t, "worker-1")
	etcd := func(i int) string { return c.Nodes[i].Name }
	require.Equal(t, 0, c.run("can-remove", etcd(0)).code)

	healthy := c.run("can-remove", etcd(0), etcd(1), "worker-1")
	requireGolden(t, "can-remove-yes.txt", healthy.out)
	require.Equal(t, 0, healthy.code)

	c.setHealth(1, false)
	refused := c.run("can-remove", etcd(0), etcd(1))
	requireGolden(t, "can-remove-no.txt", refused.out)
	require.Equal(t, 1, refused.code, "one of the two may not go")
	refused = c.run("can-remove", etcd(0), "-o", "yaml")
	requireGolden(t, "can-remove-no.yaml", refused.out)
	require.Equal(t, 1, refused.code)
	waited := c.run("can-remove", etcd(0), "--wait", "--timeout=1s")
	require.Equal(t, 1, waited.code)
	require.Regexp(t, `waiting, \d+s of 1s: `+etcd(0)+`: no \(QuorumWouldBeLost\)`, waited.errOut)

	c.setHealth(1, true)
	nonce := c.withoutAgents()
	unknown := c.run("can-remove", etcd(0), "worker-1", "-o", "json")
	requireGolden(t, "can-remove-unknown.json", unknown.out)
	require.Equal(t, 2, unknown.code)
	answered := make(chan commandResult)
	go func() { answered <- c.run("can-remove", etcd(0), "--wait", "--timeout=2m") }()
	c.PublishAll(nonce)
	require.Equal(t, 0, (<-answered).code)

	gone := c.run("can-remove", "etcd-9")
	require.Equal(t, 2, gone.code, "the name may be wrong")
	require.Contains(t, gone.out, "there is no node etcd-9; check the name, or use --ignore-not-found")
	require.Equal(t, 2, c.run("can-remove", "etcd-9", "--wait").code, "waiting cannot help")
	require.Equal(t, 0, c.run("can-remove", "etcd-9", "--ignore-not-found").code)

	announced := c.worker(t, "worker-2")
	c.patch(announced, `{"metadata":{"annotations":{"holdfast.dev/etcd":"[]"}}}`)
	policy := c.run("can-remove", announced.Name, "-o", "json")
	require.Equal(t, 1, policy.code)
	require.Contains(t, policy.out, `"reason": "Policy"`)
	c.patch(announced, `{"metadata":{"annotations":{"holdfast.dev/etcd":null}}}`)
}

// Without a webhook, the API server allows the deletion of a Node without the label of etcd. That
// is no answer.
func canRemoveWithoutWebhook(t *testing.T, c *reviewedCluster) {
	c.configureWebhooks("https://127.0.0.1:1", nil)
	c.worker(t, "worker-1")
	silent := c.run("can-remove", "worker-1", "-o", "json")
	require.Equal(t, 2, silent.code, silent.out)
	require.Contains(t, silent.out, `"reason": "NoAnswer"`)
	failing := c.run("can-remove", c.Nodes[0].Name)
	require.Equal(t, 2, failing.code, failing.out)
	require.Contains(t, failing.out, "failed calling webhook")

	viewer, err := c.server.User("viewer")
	require.NoError(t, err)
	path := t.TempDir() + "/kubeconfig"
	require.NoError(t, apiserver.WriteKubeconfig(path, viewer))
	denied := runPlugin(t.Context(), "--kubeconfig="+path, "can-remove", "worker-1", "-o", "json")
	require.Equal(t, 2, denied.code)
	require.Contains(t, denied.out, `"reason": "NotPermitted"`)
	c.serveWebhook() // for the tests that follow
}

// TestRefusalOfOthers: the API server answers with 403 if the user may not, and if a webhook or a
// policy refuses. Only with the first, another attempt is pointless.
func TestRefusalOfOthers(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	for name, c := range map[string]struct {
		message string
		want    quorum.Reason
	}{
		"RBAC":    {`User "alice" cannot delete resource "nodes" in API group "" at the cluster scope`, notPermitted},
		"webhook": {`admission webhook "validation.gatekeeper.sh" denied the request: [freeze] no deletions today`, failed},
		"policy":  {"ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: no deletions today", failed},
		"own policy": {
			"ValidatingAdmissionPolicy 'holdfast-nodes' with binding 'holdfast-nodes' denied request: x", refusedByPolicy,
		},
	} {
		t.Run(name, func(t *testing.T) {
			removal := removalOf("n", nil, apierrors.NewForbidden(nodes, "n", errors.New(c.message)))
			require.Equal(t, c.want, removal.Reason)
			require.Contains(t, removal.Message, c.message)
		})
	}
}

// TestUsage: a mistake on a command line has the exit code of an unknown answer.
func TestUsage(t *testing.T) {
	const nowhere = "--server=http://127.0.0.1:1"
	for line, want := range map[string]string{
		"can-remove":                           "name at least one node",
		"can-remove w1 --wiat":                 "unknown flag: --wiat",
		"can-remove w1 -o xml":                 "use table, json or yaml",
		"can-remove w1 --timeout=1s":           "--timeout needs --wait",
		"can-remove w1 --kubeconfig=/absent":   "/absent",
		"can-remove w1 " + nowhere:             "connection refused",
		"plan":                                 "name at least one node, or select nodes with -l",
		"plan w1 -l a=b":                       "name nodes or select them with -l, not both",
		"plan -l a=b=c":                        "is no selector",
		"plan w1 --min-remaining-tolerance=-1": "is negative",
		"plan w1 " + nowhere:                   "connection refused",
		"what-if":                              "name at least one node, or select nodes with -l",
		"what-if w1 --zone=a":                  "name a zone, or name or select nodes, not both",
		"what-if -l a=b --zone=a":              "name a zone, or name or select nodes, not both",
		"what-if --zone=":                      "--zone is empty",
		"what-if w1 -l a=b":                    "name nodes or select them with -l, not both",
		"what-if w1 " + nowhere:                "connection refused",
	} {
		t.Run(line, func(t *testing.T) {
			r := runPlugin(t.Context(), strings.Fields(line)...)
			require.Equal(t, 2, r.code)
			require.Contains(t, r.out+r.errOut, want)
		})
	}
}

// TestNotFoundByAnother: a load balancer or a proxy that is no API server answers 404 to
// everything. Nothing is known about the node then.
func TestNotFoundByAnother(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(http.NotFound))
	defer web.Close()
	r := runPlugin(t.Context(), "--server="+web.URL, "can-remove", "w1", "--ignore-not-found", "-o", "json")
	require.Equal(t, 2, r.code, r.out)
	require.Contains(t, r.out, `"reason": "Failed"`)
	unexpected := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Resource: "nodes"},
		"w1", "404 page not found", 0, true)
	require.Equal(t, failed, removalOf("w1", nil, unexpected).Reason)
}

// TestInterrupted: an API server that accepts requests and does not answer, such as one of an old
// context. Ctrl-C ends each command, also the first request, for the kinds that it has.
func TestInterrupted(t *testing.T) {
	for _, line := range []string{"status", "settle w1", "can-remove w1", "uninstall"} {
		t.Run(line, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				interrupt()
				<-r.Context().Done()
			}))
			defer web.Close()
			ended := make(chan commandResult, 1)
			go func() { ended <- runPlugin(ctx, append(strings.Fields(line), "--server="+web.URL)...) }()
			select {
			case r := <-ended:
				require.NotZero(t, r.code)
				require.Contains(t, r.out+r.errOut, "context canceled")
			case <-time.After(time.Minute):
				web.CloseClientConnections()
				require.Fail(t, "the command does not end")
			}
		})
	}
}
