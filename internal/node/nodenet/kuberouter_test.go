package nodenet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/hosttest"
)

// TestBridgeSubnetsKubeRouter fixes what docs/systems/k0s.md says: k0s installs the
// configuration of kube-router without addresses, and kube-router inserts them
// afterwards, so that there is nothing to compare before.
func TestBridgeSubnetsKubeRouter(t *testing.T) {
	for name, c := range map[string]struct {
		ipam    string
		subnets []string
	}{
		"as installed":        {ipam: `{"type":"host-local"}`},
		"after its first run": {ipam: `{"type":"host-local","subnet":"10.244.1.0/24"}`, subnets: []string{"10.244.1.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := observe(t, hosttest.New(t, confs("10-kuberouter.conflist", pluginList(
				`{"name":"kubernetes","type":"bridge","bridge":"kube-bridge","isDefaultGateway":true,"ipam":`+c.ipam+`}`,
				`{"type":"portmap"}`)))).Conflist
			require.Empty(t, got.Problem)
			require.Equal(t, c.subnets, got.BridgeSubnets)
			require.False(t, got.AmbiguousName)
		})
	}
}
