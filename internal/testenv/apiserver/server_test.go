package apiserver_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

func TestIdentities(t *testing.T) {
	server := apiserver.New(t)
	ctx := t.Context()
	node, kubelet, err := server.AddNode(ctx,
		apiserver.NodeSpec{Name: "worker-1", InternalIP: "192.0.2.1", Ready: true})
	require.NoError(t, err)
	require.NoError(t, apiserver.Heartbeat(ctx, kubelet, "worker-1", false))
	_, err = apiserver.RegisterNode(ctx, kubelet, apiserver.NodeSpec{Name: "worker-2"})
	require.ErrorContains(t, err, "forbidden", "a kubelet must register only its own node")

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}
	_, err = server.Client().CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{})
	require.NoError(t, err)
	bound, err := server.ServiceAccountConfig(ctx, "default", "agent", "worker-1")
	require.NoError(t, err)
	unbound, err := server.ServiceAccountConfig(ctx, "default", "agent", "")
	require.NoError(t, err)
	user, err := server.User("alice", "developers")
	require.NoError(t, err)

	const agent = "system:serviceaccount:default:agent"
	for name, test := range map[string]struct {
		config *rest.Config
		user   string
		group  string
		node   []string
	}{
		"administrator": {config: server.Admin(), user: "kubernetes-admin", group: "system:masters"},
		"kubelet":       {config: kubelet, user: "system:node:worker-1", group: "system:nodes"},
		"user":          {config: user, user: "alice", group: "developers"},
		"bound":         {config: bound, user: agent, group: "system:serviceaccounts", node: []string{"worker-1"}},
		"unbound":       {config: unbound, user: agent, group: "system:serviceaccounts"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "kubeconfig")
			require.NoError(t, apiserver.WriteKubeconfig(path, test.config))
			out, err := server.KubectlAs(t.Context(), path, "auth", "whoami")
			require.NoError(t, err)
			require.Contains(t, out, test.user)

			client, err := kubernetes.NewForConfig(test.config)
			require.NoError(t, err)
			who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
				&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.Equal(t, test.user, who.Status.UserInfo.Username)
			require.Contains(t, who.Status.UserInfo.Groups, test.group)
			require.EqualValues(t, test.node, who.Status.UserInfo.Extra["authentication.kubernetes.io/node-name"])
		})
	}

	require.NoError(t, server.Client().CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}))
	client, err := kubernetes.NewForConfig(bound)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{},
			metav1.CreateOptions{})
		return apierrors.IsUnauthorized(err)
	}, 20*time.Second, 50*time.Millisecond, "the token must become invalid with its node")
}

func TestApplyWaitsForPolicies(t *testing.T) {
	server := apiserver.New(t)
	dir := t.TempDir()
	kustomization := []byte("resources: [policy.yaml]\n")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), kustomization, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-nodes}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [nodes]}]
  validations: [{expression: "false", message: no nodes today}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-nodes}
spec: {policyName: no-nodes, validationActions: [Deny]}
`), 0o600))
	require.NoError(t, server.Apply(t.Context(), dir))
	_, _, err := server.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-1"})
	require.ErrorContains(t, err, "no nodes today")
	kinds := "configmaps,validatingadmissionpolicies,validatingwebhookconfigurations"
	if server.BornHeld() {
		kinds += ",mutatingadmissionpolicies"
	}
	left, err := server.Kubectl(t.Context(), "get", kinds, "-o", "name")
	require.NoError(t, err)
	require.NotContains(t, left, "policy-probe", "WaitForPolicies must delete its objects")
	require.Contains(t, left, "no-nodes")

	// The API server reads its policies each second. It has noticed the end of the probes by then.
	<-time.After(3 * time.Second)
	require.NoError(t, server.WaitForPolicies(t.Context()))
}

// TestVersion checks that the tests run the version that they expect, and that only the right
// versions have nodes that are born held.
func TestVersion(t *testing.T) {
	server := apiserver.New(t)
	found, err := server.Client().Discovery().ServerVersion()
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(apiserver.Minor(t)), found.Minor)
	require.Equal(t, apiserver.Minor(t) >= 36, server.BornHeld())
	require.False(t, apiserver.NewOlder(t).BornHeld())
}

func TestServiceProxy(t *testing.T) {
	server := apiserver.New(t)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "echo"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 9443}}},
	}
	_, err := server.Client().CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	require.NoError(t, err)
	one, two := startNameServer(t, "one"), startNameServer(t, "two")
	gone := "127.0.0.1:1"
	proxy, err := server.ServeService(t.Context(), "default", "echo", one, gone, two)
	require.NoError(t, err)
	names := map[string]bool{}
	for range 3 {
		names[readName(t, proxy.Address())] = true
	}
	require.Equal(t, map[string]bool{"one": true, "two": true}, names)
	proxy.SetBackends(two)
	require.Equal(t, "two", readName(t, proxy.Address()))
	proxy.SetBackends()
	require.Empty(t, readName(t, proxy.Address()), "a service without backends must close the connection")
	idle, err := net.Dial("tcp", proxy.Address())
	require.NoError(t, err)
	require.NoError(t, proxy.Close())
	require.NoError(t, proxy.Close())
	_, err = io.ReadAll(idle)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = net.Dial("tcp", proxy.Address())
	require.Error(t, err)
}

func TestStartControllers(t *testing.T) {
	server := apiserver.New(t)
	_, err := server.StartControllers("node-ipam-controller")
	require.NoError(t, err)
	_, _, err = server.AddNode(t.Context(), apiserver.NodeSpec{Name: "worker-1"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		node, err := server.Client().CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{})
		require.NoError(t, err)
		return node.Spec.PodCIDR != ""
	}, 30*time.Second, 50*time.Millisecond)
}

func TestStartError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := apiserver.Start(ctx, apiserver.Options{Dir: t.TempDir()})
	require.ErrorIs(t, err, context.Canceled)
}

// startNameServer listens on a free port and writes its name to each connection.
func startNameServer(t *testing.T, name string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(name))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}

func readName(t *testing.T, address string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	text, _ := io.ReadAll(conn)
	return string(text)
}
