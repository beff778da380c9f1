package manifests_test

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

const removeLabel = `{"metadata":{"labels":{"holdfast.dev/etcd-member":null}}}`

func testBreakGlass(t *testing.T, server *apiserver.Server) {
	addNodes(t, server, "own", "other", "open")
	patchNode(t, server, "own", labels(`{"holdfast.dev/etcd-member":"true","env":"prod"}`))
	patchNode(t, server, "own", annotations(
		`{"holdfast.dev/break-glass":"old","holdfast.dev/etcd":"[]","holdfast.dev/etcd-unverified":"[]"}`))
	defer removeProtection(t, server, "own")
	patchNode(t, server, "open", labels(`{"holdfast.dev/etcd-member":"true"}`))
	patchNode(t, server, "open", breakGlass(t, server, "open"))
	defer removeProtection(t, server, "open")

	kubelet, err := server.Kubelet("own")
	require.NoError(t, err)
	users := map[string]*kubernetes.Clientset{
		"kubelet": clientOf(t, kubelet),
		"admin":   server.Client(),
		// An autoscaler, a cloud controller or a person with permission to patch Nodes and
		// their status.
		"patcher": patcher(t, server, "patcher"),
		"breaker": patcher(t, server, "breaker", "holdfast-breakglass"),
		"agent":   serviceAccount(t, server, "holdfast-agent", "own"),
		"webhook": serviceAccount(t, server, "holdfast-webhook", ""),
	}
	const (
		glass    = "may set, change or remove it"
		guard    = "label holdfast.dev/etcd-member protects node "
		announce = "annotations holdfast.dev/etcd and holdfast.dev/etcd-unverified name"
	)
	patches := map[string]string{
		"override":            annotations(`{"holdfast.dev/break-glass":"new"}`),
		"override removed":    annotations(`{"holdfast.dev/break-glass":null}`),
		"label":               labels(`{"holdfast.dev/etcd-member":"true"}`),
		"label changed":       labels(`{"holdfast.dev/etcd-member":"false"}`),
		"label removed":       removeLabel,
		"labels removed":      labels(`null`),
		"announcement":        annotations(`{"holdfast.dev/etcd":"[{}]"}`),
		"announcement gone":   annotations(`{"holdfast.dev/etcd":null}`),
		"unverified gone":     annotations(`{"holdfast.dev/etcd-unverified":null}`),
		"unrelated keys only": `{"metadata":{"labels":{"env":"test"},"annotations":{"example.org/x":"y"}}}`,
	}
	for _, test := range []struct {
		user, patch, node, subresource, want string
	}{
		{user: "patcher", patch: "override", want: glass},
		{user: "patcher", patch: "override", node: "other", want: glass},
		{user: "patcher", patch: "override", subresource: "status", want: glass},
		{user: "patcher", patch: "override removed", want: glass},
		{user: "patcher", patch: "override removed", node: "other"},
		{user: "patcher", patch: "override removed", subresource: "status", want: glass},
		{user: "patcher", patch: "label removed", want: guard},
		{user: "patcher", patch: "label removed", subresource: "status", want: guard},
		{user: "patcher", patch: "label removed", node: "open", want: guard},
		{user: "patcher", patch: "label changed", want: guard},
		{user: "patcher", patch: "labels removed", want: guard},
		{user: "patcher", patch: "label", node: "other"},
		{user: "patcher", patch: "unrelated keys only"},
		{user: "patcher", patch: "announcement gone", want: announce},
		{user: "patcher", patch: "announcement gone", subresource: "status", want: announce},
		{user: "patcher", patch: "unverified gone", want: announce},
		{user: "patcher", patch: "announcement", want: announce},
		{user: "patcher", patch: "announcement", node: "other"},
		{user: "kubelet", patch: "announcement gone", want: announce},
		{user: "agent", patch: "announcement gone"},
		{user: "agent", patch: "unverified gone"},
		{user: "webhook", patch: "announcement gone", want: announce},
		{user: "breaker", patch: "announcement gone"},
		{user: "admin", patch: "unverified gone"},
		{user: "kubelet", patch: "override", want: glass},
		{user: "kubelet", patch: "override removed", want: glass},
		{user: "kubelet", patch: "override", subresource: "status", want: glass},
		{user: "kubelet", patch: "override removed", subresource: "status", want: glass},
		{user: "kubelet", patch: "label removed", want: guard},
		{user: "kubelet", patch: "label removed", subresource: "status", want: guard},
		{user: "kubelet", patch: "unrelated keys only"},
		{user: "agent", patch: "override", want: glass},
		{user: "agent", patch: "override removed", want: glass},
		{user: "agent", patch: "label removed"},
		{user: "webhook", patch: "override", want: glass},
		{user: "webhook", patch: "override removed", want: glass},
		{user: "webhook", patch: "label removed", want: guard},
		{user: "webhook", patch: "label removed", node: "open", want: guard},
		{user: "webhook", patch: "label", node: "other"},
		{user: "breaker", patch: "override"},
		{user: "breaker", patch: "override removed"},
		{user: "breaker", patch: "label removed", want: guard},
		{user: "breaker", patch: "label removed", node: "open"},
		{user: "breaker", patch: "label removed", node: "open", subresource: "status"},
		{user: "admin", patch: "override"},
		{user: "admin", patch: "override removed"},
		{user: "admin", patch: "label removed", want: guard},
		{user: "admin", patch: "labels removed", want: guard},
		{user: "admin", patch: "label removed", node: "open"},
	} {
		node := cmp.Or(test.node, "own")
		t.Run(test.user+"/"+test.patch+"/"+node+test.subresource, func(t *testing.T) {
			var subresource []string
			if test.subresource != "" {
				subresource = []string{test.subresource}
			}
			err := patchDry(t.Context(), users[test.user], node, patches[test.patch], subresource...)
			requireVerdict(t, test.want, err)
		})
	}
	t.Run("kubelet/registers with override", func(t *testing.T) {
		override := map[string]string{"holdfast.dev/break-glass": "{}"}
		_, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "forger", Annotations: override})
		requireVerdict(t, glass, err)
	})
	t.Run("kubelet/registers with label", func(t *testing.T) {
		label := map[string]string{"holdfast.dev/etcd-member": "true"}
		_, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "early", Labels: label})
		require.NoError(t, err)
		removeProtection(t, server, "early")
		remove(t, server, "early")
	})
	// F29: the label was removed without an override while the agent was paused.
	t.Run("label removal", func(t *testing.T) { testLabelRemoval(t, server) })
	t.Run("deletion without label", func(t *testing.T) { testUnlabelledDeletion(t, server) })
	t.Run("broken policy", func(t *testing.T) { testBrokenPolicy(t, server) })
}

// testLabelRemoval checks which break-glass annotations permit to remove the label. The API
// server needs no webhook for that.
func testLabelRemoval(t *testing.T, server *apiserver.Server) {
	const refused = "first set the break-glass annotation"
	uid := nodeUID(t, server, "own")
	both := func(glass string) string {
		text, err := json.Marshal(glass)
		require.NoError(t, err)
		return `{"metadata":{"labels":{"holdfast.dev/etcd-member":null},"annotations":{"holdfast.dev/break-glass":` +
			string(text) + `}}}`
	}
	spaced := "{\n  \"uid\" : \"" + uid + "\",\t\"reason\": \"x\", \"until\" :\"2026-01-02T03:04:05+01:00\" }"
	valid := `{"uid":"` + uid + `","until":"2026-01-02T03:04:05Z","reason":"a \"b\""}`
	for name, test := range map[string]struct{ patch, want string }{
		"valid":         {patch: both(valid)},
		"with spaces":   {patch: both(spaced)},
		"other UID":     {both(strings.Replace(valid, uid, nodeUID(t, server, "other"), 1)), refused},
		"UID in reason": {both(`{"uid":"x","until":"2026-01-02T03:04:05Z","reason":"\"uid\":\"` + uid + `\""}`), refused},
		"no UID":        {both(`{"until":"2026-01-02T03:04:05Z","reason":"x"}`), refused},
		"no end":        {both(`{"uid":"` + uid + `","reason":"x"}`), refused},
		"malformed end": {both(`{"uid":"` + uid + `","until":"tomorrow","reason":"x"}`), refused},
		"no reason":     {both(`{"uid":"` + uid + `","until":"2026-01-02T03:04:05Z","reason":" "}`), refused},
		"no JSON":       {both("yes"), refused},
		"empty":         {both(""), refused},
		"removed at once": {
			`{"metadata":{"labels":{"holdfast.dev/etcd-member":null},"annotations":{"holdfast.dev/break-glass":null}}}`, refused,
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireVerdict(t, test.want, patchDry(t.Context(), server.Client(), "own", test.patch))
		})
	}
	err := patchDry(t.Context(), server.Client(), "own", removeLabel)
	require.ErrorContains(t, err,
		`kubectl annotate --overwrite node own holdfast.dev/break-glass='{"uid":"`+uid+`","until":"'$(date`)
}

// testUnlabelledDeletion deletes Nodes with an announcement and without the label. No webhook
// runs, so that only the policy can refuse.
func testUnlabelledDeletion(t *testing.T, server *apiserver.Server) {
	const refused = "node bare holds etcd"
	addNodes(t, server, "bare")
	defer removeProtection(t, server, "bare")
	nodes, dry := server.Client().CoreV1().Nodes(), metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	require.NoError(t, nodes.Delete(t.Context(), "bare", dry), "no announcement")
	for _, key := range []string{"holdfast.dev/etcd", "holdfast.dev/etcd-unverified"} {
		patchNode(t, server, "bare", annotations(`{"`+key+`":"[]","holdfast.dev/break-glass":null}`))
		patchNode(t, server, "bare", labels(`{"mine":"yes"}`))
		requireVerdict(t, refused, nodes.Delete(t.Context(), "bare", dry))
		err := nodes.DeleteCollection(t.Context(), dry, metav1.ListOptions{LabelSelector: "mine=yes"})
		requireVerdict(t, refused, err)
		require.ErrorContains(t, err, "kubectl label --overwrite node bare holdfast.dev/etcd-member=true")
		patchNode(t, server, "bare", breakGlass(t, server, "other"))
		requireVerdict(t, refused, nodes.Delete(t.Context(), "bare", dry))
		patchNode(t, server, "bare", breakGlass(t, server, "bare"))
		require.NoError(t, nodes.Delete(t.Context(), "bare", dry))
		patchNode(t, server, "bare", annotations(`{"`+key+`":null}`))
	}

	// The steps of docs/break-glass.md: annotation, label, deletion. With the label, the API server
	// calls the webhook, which does not run.
	patchNode(t, server, "bare", annotations(`{"holdfast.dev/etcd":"[]"}`))
	patchNode(t, server, "bare", labels(`{"holdfast.dev/etcd-member":"true"}`))
	require.ErrorContains(t, nodes.Delete(t.Context(), "bare", dry), "etcd-nodes.holdfast.dev")
	patchNode(t, server, "bare", removeLabel)
	require.NoError(t, nodes.Delete(t.Context(), "bare", dry))
	patchNode(t, server, "bare", annotations(`{"holdfast.dev/break-glass":null}`))
	requireVerdict(t, refused, nodes.Delete(t.Context(), "bare", dry))
}

// testBrokenPolicy makes the expressions of the policy fail. The API server then refuses the
// guarded writes and accepts all others, those of kubelets included.
func testBrokenPolicy(t *testing.T, server *apiserver.Server) {
	policies := server.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	whole, err := policies.Get(t.Context(), "holdfast-nodes", metav1.GetOptions{})
	require.NoError(t, err)
	broken := whole.DeepCopy()
	for i := range broken.Spec.Variables {
		switch v := &broken.Spec.Variables[i]; v.Name {
		case "mayBreakGlass", "changesGlass", "removesLabel", "changesAnnouncement", "deletesUnlabelled":
			v.Expression = "dyn(object).nothing.of.the.kind == true"
		}
	}
	replaceSpec := func(spec admissionv1.ValidatingAdmissionPolicySpec) {
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec", "value": spec}})
		require.NoError(t, err)
		_, err = policies.Patch(t.Context(), "holdfast-nodes", types.JSONPatchType, patch, metav1.PatchOptions{})
		require.NoError(t, err)
		require.NoError(t, server.WaitForPolicies(t.Context()))
	}
	replaceSpec(broken.Spec)
	defer replaceSpec(whole.Spec)
	err = patchDry(t.Context(), server.Client(), "own", removeLabel)
	require.ErrorContains(t, err, "no such key")
	kubelet, err := server.Kubelet("own")
	require.NoError(t, err)
	require.NoError(t, apiserver.Heartbeat(t.Context(), kubelet, "own", true))
	_, _, err = server.AddNode(t.Context(), apiserver.NodeSpec{Name: "late"})
	require.NoError(t, err)
	remove(t, server, "late")
}

// patcher returns a user with permission to patch Nodes, and with further cluster roles.
func patcher(t *testing.T, server *apiserver.Server, name string, roles ...string) *kubernetes.Clientset {
	t.Helper()
	nodes := []string{"nodes", "nodes/status"}
	createRole(t, server, name, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: nodes, Verbs: []string{"patch"}})
	for _, role := range append(roles, name) {
		bindRole(t, server, role, "User", name)
	}
	user, err := server.User(name)
	require.NoError(t, err)
	client := clientOf(t, user)
	require.Eventually(t, func() bool { // the authorizer reads bindings through a watch
		return patchDry(t.Context(), client, "own", labels(`{"example.org/x":"y"}`)) == nil
	}, soon, poll)
	return client
}

// testGrants deletes EtcdClusters with and without grants, by name and as a collection.
func testGrants(t *testing.T, server *apiserver.Server) {
	const (
		head    = `{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"labels":{"mine":"yes"},"name":`
		granted = head + `"ab01"},"spec":{"grants":[` +
			`{"node":"etcd-1","nodeUID":"u1","members":["1"],"drain":{"time":"2026-01-02T03:04:05Z"}}]}}`
		free    = head + `"ab02"},"spec":{"members":[{"memberID":"1","node":"etcd-1","nodeUID":"u1"}]}}`
		refused = "EtcdCluster ab01 has open grants"
	)
	admin := server.Client().RESTClient()
	for _, body := range []string{granted, free} {
		require.NoError(t, admin.Post().AbsPath(clusterPath).Body([]byte(body)).Do(t.Context()).Error())
	}
	createRole(t, server, "cluster-remover", rbacv1.PolicyRule{
		APIGroups: []string{"holdfast.dev"}, Resources: []string{"etcdclusters"},
		Verbs: []string{"delete", "deletecollection"},
	})
	bindRole(t, server, "cluster-remover", "User", "cluster-remover")
	remover := as(t, server, rest.ImpersonationConfig{UserName: "cluster-remover"})
	deleteDry := func(client *kubernetes.Clientset, name string) error {
		request := client.RESTClient().Delete().AbsPath(clusterPath, name).Param("dryRun", "All")
		return request.Do(t.Context()).Error()
	}
	patchCluster := func(patch string) {
		request := admin.Patch("application/merge-patch+json").AbsPath(clusterPath, "ab01").Body([]byte(patch))
		require.NoError(t, request.Do(t.Context()).Error())
	}
	require.Eventually(t, func() bool { return deleteDry(remover, "ab02") == nil }, soon, poll, "an object without grants")
	requireVerdict(t, refused, deleteDry(remover, "ab01"))
	require.ErrorContains(t, deleteDry(remover, "ab01"), "(nodes etcd-1)")
	require.ErrorContains(t, deleteDry(remover, "ab01"), "kubectl annotate etcdcluster ab01 holdfast.dev/settle=")
	requireVerdict(t, refused, remover.RESTClient().Delete().AbsPath(clusterPath).Param("labelSelector", "mine=yes").
		Param("dryRun", "All").Do(t.Context()).Error())

	breaker := as(t, server, rest.ImpersonationConfig{
		UserName: "cluster-remover", Groups: []string{"glass-breakers"},
	})
	bindRole(t, server, "holdfast-breakglass", "Group", "glass-breakers")
	for _, client := range []*kubernetes.Clientset{breaker, server.Client()} {
		require.ErrorContains(t, deleteDry(client, "ab01"), "holdfast.dev/break-glass=", "the message has the command")
	}
	override := func(uid string) { patchCluster(annotations(`{"holdfast.dev/break-glass":"` + uid + `"}`)) }
	override("of another object")
	require.ErrorContains(t, deleteDry(server.Client(), "ab01"), refused)
	object, err := admin.Get().AbsPath(clusterPath, "ab01").Do(t.Context()).Raw()
	require.NoError(t, err)
	var found metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(object, &found))
	override(string(found.UID))
	require.Eventually(t, func() bool { return deleteDry(breaker, "ab01") == nil }, soon, poll,
		"has the verb, which the authorizer reads through a watch, and the annotation")
	require.NoError(t, deleteDry(server.Client(), "ab01"))
	requireVerdict(t, refused, deleteDry(remover, "ab01"))

	// Without grants, no verb is needed.
	patchCluster(`{"spec":{"grants":null}}`)
	require.NoError(t, deleteDry(remover, "ab01"))
	for _, name := range []string{"ab01", "ab02"} {
		require.NoError(t, remover.RESTClient().Delete().AbsPath(clusterPath, name).Do(t.Context()).Error())
	}
}

// testGrantUpdates writes earlier states of an EtcdCluster, as the restore of a backup does.
func testGrantUpdates(t *testing.T, server *apiserver.Server) {
	const (
		refused = "EtcdCluster ab03 has open grants"
		first   = `{"node":"etcd-1","nodeUID":"u1","members":["1"],"drain":{"time":"2026-01-02T03:04:05Z"}}`
		second  = `{"node":"etcd-2","nodeUID":"u2","members":["2"],"delete":{"time":"2026-01-02T03:04:05Z"}}`
		emptied = `{"node":"etcd-2","nodeUID":"u2","members":[]}`
		none    = `{"spec":{"grants":null}}`
		noGlass = `{"metadata":{"annotations":{"holdfast.dev/break-glass":null}}}`
	)
	createRole(t, server, "cluster-patcher", rbacv1.PolicyRule{
		APIGroups: []string{"holdfast.dev"}, Resources: []string{"etcdclusters"}, Verbs: []string{"patch"},
	})
	bindRole(t, server, "cluster-patcher", "User", "cluster-patcher")
	users := map[string]*kubernetes.Clientset{
		"admin":   server.Client(),
		"patcher": as(t, server, rest.ImpersonationConfig{UserName: "cluster-patcher"}),
		"webhook": serviceAccount(t, server, "holdfast-webhook", ""),
	}
	patch := func(user, body string, dryRun ...string) error {
		request := users[user].RESTClient().Patch("application/merge-patch+json").AbsPath(clusterPath, "ab03")
		for _, value := range dryRun {
			request.Param("dryRun", value)
		}
		return request.Body([]byte(body)).Do(t.Context()).Error()
	}
	grants := func(list ...string) string { return `{"spec":{"grants":[` + strings.Join(list, ",") + `]}}` }
	admin := server.Client().RESTClient()
	made, err := admin.Post().AbsPath(clusterPath).Body([]byte(
		`{"apiVersion":"holdfast.dev/v1alpha1","kind":"EtcdCluster","metadata":{"name":"ab03"}}`)).Do(t.Context()).Raw()
	require.NoError(t, err)
	key := `"metadata":{"annotations":{"holdfast.dev/break-glass":"` + string(decode(t, made).GetUID()) + `"}}`
	require.NoError(t, patch("admin", grants(first)), "the object has no grants")
	require.NoError(t, patch("admin", grants(first, second)), "a further grant only refuses more")
	require.Eventually(t, func() bool { return patch("patcher", "{}", metav1.DryRunAll) == nil }, soon, poll,
		"the authorizer reads bindings through a watch")

	for name, test := range map[string]struct{ user, patch, want string }{
		"all dropped":      {"admin", none, refused},
		"empty list":       {"admin", grants(), refused},
		"spec dropped":     {"admin", `{"spec":null}`, refused},
		"one dropped":      {"admin", grants(first), refused},
		"one emptied":      {"admin", grants(first, emptied), refused},
		"brings its key":   {"admin", "{" + key + `,"spec":{"grants":null}}`, refused},
		"by a patcher":     {"patcher", none, refused},
		"other order":      {"admin", grants(second, first), ""},
		"members":          {"admin", `{"spec":{"members":[{"memberID":"1","node":"etcd-1","nodeUID":"u1"}]}}`, ""},
		"label":            {"admin", labels(`{"x":"y"}`), ""},
		"settle":           {"patcher", annotations(`{"holdfast.dev/settle":"u1"}`), ""},
		"webhook drops":    {"webhook", grants(second), ""},
		"webhook replaces": {"webhook", grants(first, emptied), ""},
	} {
		t.Run(name, func(t *testing.T) {
			requireVerdict(t, test.want, patch(test.user, test.patch, metav1.DryRunAll))
		})
	}
	require.ErrorContains(t, patch("admin", grants(first)), "(nodes etcd-2)", "not the grant that stays")
	require.NoError(t, patch("admin", "{"+key+"}"))
	requireVerdict(t, refused, patch("patcher", none, metav1.DryRunAll))
	require.NoError(t, patch("admin", grants(first)), "the key came with an earlier request")

	// The finalizer of a deleted object can be removed while it has grants.
	require.NoError(t, patch("admin", `{"metadata":{"finalizers":["example.org/x"]}}`))
	require.NoError(t, admin.Delete().AbsPath(clusterPath, "ab03").Do(t.Context()).Error())
	require.NoError(t, patch("admin", noGlass))
	requireVerdict(t, refused, patch("admin", none, metav1.DryRunAll))
	require.NoError(t, patch("patcher", `{"metadata":{"finalizers":null}}`))
	require.True(t, apierrors.IsNotFound(admin.Get().AbsPath(clusterPath, "ab03").Do(t.Context()).Error()))
}
