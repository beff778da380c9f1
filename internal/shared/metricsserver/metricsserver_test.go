package metricsserver

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// TestAuthorizer asks a real API server, with the permissions that the component metrics gives.
func TestAuthorizer(t *testing.T) {
	server := apiserver.New(t)
	for _, account := range []string{"scraper", "stranger", "agent", "powerless"} {
		_, err := server.Client().CoreV1().ServiceAccounts("default").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, err := server.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{Path}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	bind(t, server, "metrics", "scraper")
	bind(t, server, "system:auth-delegator", "agent")
	waitForRight(t, server, "scraper", authorizationv1.SubjectAccessReviewSpec{
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"},
	})
	waitForRight(t, server, "agent", authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: "authentication.k8s.io", Resource: "tokenreviews", Verb: "create",
		},
	})

	url, client := serve(t, tokenOf(t, server, "agent"))
	scraper, stranger := tokenOf(t, server, "scraper").BearerToken, tokenOf(t, server, "stranger").BearerToken
	for name, test := range map[string]struct {
		header string
		status int
		text   string
	}{
		"no token":       {"", http.StatusUnauthorized, "a bearer token of this Kubernetes cluster is required"},
		"other scheme":   {"Basic " + scraper, http.StatusUnauthorized, "a bearer token"},
		"unknown token":  {"Bearer nonsense", http.StatusUnauthorized, "not valid in this Kubernetes cluster"},
		"no permission":  {"Bearer " + stranger, http.StatusForbidden, `"system:serviceaccount:default:stranger" may not`},
		"may read":       {"Bearer " + scraper, http.StatusOK, "holdfast_build_info{"},
		"lower case":     {"bearer " + scraper, http.StatusOK, "holdfast_build_info{"},
		"token and more": {"Bearer " + scraper + "x", http.StatusUnauthorized, "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the second answer is from memory
				status, text := get(t, client, url+Path, test.header)
				require.Equal(t, test.status, status, text)
				require.Contains(t, text, test.text)
			}
		})
	}
	status, _ := get(t, client, url+"/debug/pprof/", "Bearer "+scraper)
	require.Equal(t, http.StatusNotFound, status)

	t.Run("account without permission for reviews", func(t *testing.T) {
		url, client := serve(t, tokenOf(t, server, "powerless"))
		status, text := get(t, client, url+Path, "Bearer "+scraper)
		require.Equal(t, http.StatusServiceUnavailable, status, text)
	})
	t.Run("no API server", func(t *testing.T) {
		url, client := serve(t, &rest.Config{Host: "https://127.0.0.1:1"})
		status, text := get(t, client, url+Path, "Bearer "+scraper)
		require.Equal(t, http.StatusServiceUnavailable, status, text)
	})
	t.Run("flood of tokens", func(t *testing.T) {
		url, client := serve(t, tokenOf(t, server, "agent"))
		status, _ := get(t, client, url+Path, "Bearer "+scraper)
		require.Equal(t, http.StatusOK, status)
		require.Eventually(t, func() bool {
			status, _ := get(t, client, url+Path, "Bearer "+time.Now().String())
			return status == http.StatusTooManyRequests
		}, 20*time.Second, time.Millisecond)
		status, _ = get(t, client, url+Path, "Bearer "+scraper)
		require.Equal(t, http.StatusOK, status, "a known client is not affected")
	})
}

func TestHandler(t *testing.T) {
	registry := newTestRegistry(t)
	problems, err := testutil.GatherAndLint(registry)
	require.NoError(t, err)
	require.Empty(t, problems)
}

func TestBuildInfo(t *testing.T) {
	for version, want := range map[string]map[string]string{
		"v0.1.0+abc go1.26.8":              {"version": "v0.1.0", "revision": "abc", "goversion": "go1.26.8"},
		"(devel) go1.26.8":                 {"version": "(devel)", "revision": "", "goversion": "go1.26.8"},
		"v0.2.0 abc with changes go1.26.8": {"version": "v0.2.0", "revision": "abc", "goversion": "go1.26.8"},
		"unknown":                          {"version": "unknown", "revision": "", "goversion": "unknown"},
	} {
		t.Run(version, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			require.NoError(t, registry.Register(NewBuildInfo("agent", version)))
			families, err := registry.Gather()
			require.NoError(t, err)
			got := map[string]string{}
			for _, l := range families[0].GetMetric()[0].GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			want["program"] = "agent"
			require.Equal(t, want, got)
		})
	}
}

func newTestRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(NewBuildInfo("agent", "v1+2 go3")))
	return registry
}

// serve returns the address of a protected port, and a client that does not verify its certificate.
func serve(t *testing.T, account *rest.Config) (string, *http.Client) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	authorizer, err := NewAuthorizer(account, log)
	require.NoError(t, err)
	port := httptest.NewUnstartedServer(authorizer.Require(Handler(newTestRegistry(t), log)))
	port.TLS, err = SelfSigned("node-1")
	require.NoError(t, err)
	port.StartTLS()
	t.Cleanup(port.Close)
	//nolint:gosec // As a scraper does: the certificate is self-signed.
	return port.URL, &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
}

func get(t *testing.T, client *http.Client, url, authorization string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	response, err := client.Do(request)
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, string(text)
}

func tokenOf(t *testing.T, server *apiserver.Server, account string) *rest.Config {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), "default", account, "")
	require.NoError(t, err)
	return config
}

// waitForRight waits until the authorizer, which reads roles and bindings through watches, lets an
// account do something.
func waitForRight(
	t *testing.T, server *apiserver.Server, account string, right authorizationv1.SubjectAccessReviewSpec,
) {
	t.Helper()
	right.User = "system:serviceaccount:default:" + account
	reviews := server.Client().AuthorizationV1().SubjectAccessReviews()
	require.Eventually(t, func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: right}
		answer, err := reviews.Create(t.Context(), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed
	}, 20*time.Second, 20*time.Millisecond, account)
}

func bind(t *testing.T, server *apiserver.Server, role, account string) {
	t.Helper()
	_, err := server.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: account}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}
