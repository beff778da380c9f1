package manifests_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
)

// A monitor contains the parts of a PodMonitor or ServiceMonitor that the test reads.
type monitor struct {
	Spec struct {
		JobLabel            string
		Selector            metav1.LabelSelector
		PodMetricsEndpoints []monitorEndpoint
		Endpoints           []monitorEndpoint
	}
}

// A monitorEndpoint is a port that Prometheus scrapes.
type monitorEndpoint struct {
	Port, Scheme  string
	Authorization struct{ Credentials corev1.SecretKeySelector }
}

// testMonitoring checks that the component monitoring agrees with the programs: ports, labels, the
// token of the scraper, and the jobs that the alerts name.
func testMonitoring(t *testing.T, all []string) {
	agent := one[appsv1.DaemonSet](t, all, "DaemonSet", "holdfast-agent").Spec.Template
	require.Contains(t, agent.Spec.Containers[0].Args, "--metrics-listen=:11878")
	require.Equal(t, []corev1.ContainerPort{{Name: "metrics", ContainerPort: 11878}}, agent.Spec.Containers[0].Ports)
	webhook := one[appsv1.Deployment](t, all, "Deployment", "holdfast-webhook").Spec.Template
	require.Contains(t, webhook.Spec.Containers[0].Args, "--metrics-secure")
	service := one[corev1.Service](t, all, "Service", "holdfast-webhook-metrics")
	require.Equal(t, "metrics", service.Spec.Ports[0].TargetPort.StrVal)
	require.Contains(t, webhook.Spec.Containers[0].Ports,
		corev1.ContainerPort{Name: "metrics", ContainerPort: service.Spec.Ports[0].Port})

	secret := one[corev1.Secret](t, all, "Secret", "holdfast-scraper")
	require.Equal(t, corev1.SecretTypeServiceAccountToken, secret.Type)
	require.Equal(t, "holdfast-scraper", secret.Annotations[corev1.ServiceAccountNameKey])
	for name, targets := range map[string]map[string]string{
		"PodMonitor/holdfast-agent": agent.Labels, "ServiceMonitor/holdfast-webhook": service.Labels,
	} {
		m := monitorNamed(t, all, name)
		require.Subset(t, targets, m.Spec.Selector.MatchLabels, name)
		require.Equal(t, name[strings.Index(name, "/")+1:], targets[m.Spec.JobLabel], "alerts name this job")
		endpoint := append(m.Spec.PodMetricsEndpoints, m.Spec.Endpoints...)[0]
		require.Equal(t, "metrics", endpoint.Port)
		require.Equal(t, "https", endpoint.Scheme)
		require.Equal(t, "holdfast-scraper", endpoint.Authorization.Credentials.Name)
		require.Equal(t, corev1.ServiceAccountTokenKey, endpoint.Authorization.Credentials.Key)
	}
	dashboard := one[corev1.ConfigMap](t, all, "ConfigMap", "holdfast-dashboard")
	require.Equal(t, "1", dashboard.Labels["grafana_dashboard"])
	require.True(t, json.Valid([]byte(dashboard.Data["holdfast.json"])))
}

// monitorNamed returns the PodMonitor or ServiceMonitor with this kind and name.
func monitorNamed(t *testing.T, documents []string, name string) monitor {
	t.Helper()
	for _, document := range documents {
		if identity(t, document) == name {
			var m monitor // The types of the operator are in tools/prometheus, which checks every field.
			require.NoError(t, yaml.Unmarshal([]byte(document), &m))
			return m
		}
	}
	require.Fail(t, "not in the manifests", name)
	panic("unreachable")
}

// testMetricsComponent checks what the roles of the component metrics permit.
func testMetricsComponent(t *testing.T, server *apiserver.Server) {
	_, err := server.Kubectl(t.Context(), "apply", "-f", "components/metrics/rbac.yaml")
	require.NoError(t, err)
	ctx := context.WithoutCancel(t.Context()) // cleanups run after the end of the test's own context
	t.Cleanup(func() {
		_, err := server.Kubectl(ctx, "delete", "-f", "components/metrics/rbac.yaml")
		require.NoError(t, err)
	})
	client := serviceAccount(t, server, "holdfast-agent", "")
	require.Eventually(t, func() bool { // the API server reads roles through a watch
		_, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: "unknown"},
		}, metav1.CreateOptions{})
		return err == nil
	}, soon, poll)
	_, err = server.Kubectl(t.Context(), "create", "clusterrolebinding", "test-metrics-reader",
		"--clusterrole=holdfast-metrics-reader", "--user=scraper")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := server.Kubectl(ctx, "delete", "clusterrolebinding", "test-metrics-reader")
		require.NoError(t, err)
	})
	require.Eventually(t, func() bool {
		reviews := client.AuthorizationV1().SubjectAccessReviews()
		review, err := reviews.Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "scraper", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
			},
		}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed
	}, soon, poll)
}
