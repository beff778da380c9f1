package manifests_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
)

// requireVerdict checks that a write passed, if nothing is wanted, or that a policy refused it with these words. Several
// policies may refuse one write; each is a cause.
func requireVerdict(t *testing.T, want string, err error) {
	t.Helper()
	if want == "" {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, "ValidatingAdmissionPolicy")
	status := new(apierrors.StatusError)
	require.ErrorAs(t, err, &status)
	var causes []string
	for _, cause := range status.ErrStatus.Details.Causes {
		causes = append(causes, cause.Message)
	}
	require.Contains(t, strings.Join(causes, "\n"), want)
}

func isForbidden(err error) bool { return apierrors.IsForbidden(err) }

func or(client, otherwise *kubernetes.Clientset) *kubernetes.Clientset {
	if client != nil {
		return client
	}
	return otherwise
}

func orName(name string) string {
	if name != "" {
		return name
	}
	return "own"
}
