package evidence_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// TestSafeAccess forges each value of an access.
func TestSafeAccess(t *testing.T) {
	good := v1alpha1.Access{
		Distribution: v1alpha1.DistributionKubespray, Endpoint: "https://10.0.0.2:2379",
		CACert: "/etc/ssl/etcd/ssl/ca.pem", Cert: "/etc/ssl/etcd/ssl/admin-w2.pem", Key: "/etc/ssl/etcd/ssl/admin-w2-key.pem",
	}
	require.Equal(t, &good, evidence.SafeAccess(&good))
	require.Nil(t, evidence.SafeAccess(nil))
	require.Nil(t, evidence.SafeAccess(&v1alpha1.Access{Distribution: "evil"}))
	ipv6 := v1alpha1.Access{Endpoint: "https://[fd00::2]:2379"}
	require.Equal(t, &ipv6, evidence.SafeAccess(&ipv6))

	rest := &v1alpha1.Access{Distribution: v1alpha1.DistributionKubespray}
	for name, change := range map[string]func(*v1alpha1.Access){
		"command in the endpoint": func(a *v1alpha1.Access) { a.Endpoint = "https://10.0.0.2:2379;reboot" },
		"line break":              func(a *v1alpha1.Access) { a.Endpoint += "\nrm" },
		"flag in the endpoint":    func(a *v1alpha1.Access) { a.Endpoint += " --user=x" },
		"no endpoint":             func(a *v1alpha1.Access) { a.Endpoint = "" },
		"socket":                  func(a *v1alpha1.Access) { a.Endpoint = "unix:///run/etcd.sock" },
		"command in a path":       func(a *v1alpha1.Access) { a.Cert = "/etc/$(reboot)" },
		"blank in a path":         func(a *v1alpha1.Access) { a.Key = "/etc/a b" },
		"relative path":           func(a *v1alpha1.Access) { a.CACert = "ca.pem" },
		"path upwards":            func(a *v1alpha1.Access) { a.CACert = "/etc/../root/x" },
		"path of a process":       func(a *v1alpha1.Access) { a.CACert = "/proc/12/root/etc/ca.pem" },
		"letters that look alike": func(a *v1alpha1.Access) { a.CACert = "/etc/\u0441a.pem" },
		"long path":               func(a *v1alpha1.Access) { a.CACert = strings.Repeat("/a", 200) },
		"long endpoint":           func(a *v1alpha1.Access) { a.Endpoint = "https://" + strings.Repeat("a", 300) },
	} {
		t.Run(name, func(t *testing.T) {
			forged := good
			change(&forged)
			require.Equal(t, rest, evidence.SafeAccess(&forged))
		})
	}
}
