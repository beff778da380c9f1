package presence

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestProviderIDProblem(t *testing.T) {
	eks := map[string]string{"eks.amazonaws.com/nodegroup": "g"}
	gke := map[string]string{"cloud.google.com/gke-nodepool": "p"}
	aks := map[string]string{"kubernetes.azure.com/agentpool": "p"}
	karpenter := map[string]string{"karpenter.sh/nodepool": "etcd"}
	for name, c := range map[string]struct {
		id     string
		labels map[string]string
		taint  string
		want   string
	}{
		"EKS":                    {"aws:///eu-west-1a/i-0fa7b6c263fa4d54b", eks, "", ""},
		"AKS":                    {"azure:///subscriptions/s", aks, "", ""},
		"EKS, no ID":             {"", eks, "", "is empty on a node with the label eks.amazonaws.com/nodegroup"},
		"EKS, ID of k3s":         {"k3s://n1", eks, "", `spec.providerID is "k3s://n1" on a node`},
		"EKS, line feed":         {"aws:///eu-west-1a/i-0fa7b6c2\n", eks, "", "is no ID of a machine"},
		"EKS, ID without a zone": {"aws://i-0fa7b6c2", eks, "", "is no ID of a machine"},
		"EKS, no scheme":         {"i-0fa7b6c2", eks, "", "is no ID of a machine"},
		"GKE":                    {"gce://project/zone/n1", gke, "", ""},
		// Google Distributed Cloud, "Reserve node resources": --provider-id=baremetal://192.168.1.190.
		"GKE, bare metal":            {"baremetal://192.168.1.190", gke, "", ""},
		"GKE, AWS":                   {"aws:///eu-west-1a/i-0fa7b6c2", gke, "", ""},
		"GKE, scheme alone":          {"baremetal://", gke, "", "is no ID of a machine"},
		"Karpenter":                  {"kwok://n1", karpenter, "", ""},
		"Karpenter, no ID":           {"", karpenter, "", "the label karpenter.sh/nodepool"},
		"Karpenter, not registered":  {"kwok://n1", karpenter, "karpenter.sh/unregistered", "conditions of its NodeClaim"},
		"not initialized":            {"", nil, cloudUninitialized, "has initialized this node"},
		"not initialized, has an ID": {"aws:///a/i-1", nil, cloudUninitialized, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := Inputs{ProviderID: c.id, Labels: c.labels}
			if c.taint != "" {
				in.Taints = []corev1.Taint{{Key: c.taint, Effect: corev1.TaintEffectNoSchedule}}
			}
			got := providerIDProblem(in)
			require.Contains(t, got, c.want)
			require.Equal(t, c.want == "", got == "", got)
			require.NotContains(t, got, "again", "a node with a voter is not to be registered again")
		})
	}
}

// TestProtectionWithoutProviderID checks that the condition of a protected node explains what makes
// the protection void, and that the protection itself does not change.
func TestProtectionWithoutProviderID(t *testing.T) {
	in := Inputs{ClustersKnown: true}
	plain := Assess(scanOf(unitServer()), in)
	in.Labels = map[string]string{"karpenter.sh/nodepool": "etcd"}
	p := Assess(scanOf(unitServer()), in)
	require.NotEmpty(t, p.ProviderIDProblem)
	require.Equal(t, plain.Message+"; "+p.ProviderIDProblem, p.Message)
	p.Message, p.ProviderIDProblem = plain.Message, ""
	require.Equal(t, plain, p)

	absent := Assess(scanOf(), in)
	require.Equal(t, MemberAbsent, absent.Membership)
	require.Empty(t, absent.ProviderIDProblem)
	require.NotContains(t, absent.Message, "providerID", "a node without etcd needs no protection")
}
