package host_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

func TestBridgesTellTheirSubnets(t *testing.T) {
	const dir = "/etc/cni/net.d/"
	for name, c := range map[string]struct {
		file, conf string
		bridged    []string
		borrowed   bool
	}{
		"containerd's sample": {
			file: "10-containerd-net.conflist", borrowed: true, bridged: []string{"10.88.0.0/16", "2001:db8:4860::/64"},
			conf: `{"name":"c","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/16"}],[{"subnet":"2001:db8:4860::/64"}]]}},{"type":"portmap"}]}`,
		},
		"one range":        {file: "1.conf", conf: `{"name":"b","type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}`, bridged: []string{"10.1.0.0/24"}},
		"behind Multus":    {file: "1.conf", conf: `{"name":"m","type":"multus","delegates":[{"plugins":[{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}]}]}`, bridged: []string{"10.1.0.0/24"}},
		"second to Calico": {file: "1.conf", conf: `{"name":"m","type":"multus","delegates":[{"type":"calico"},{"type":"bridge","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}]}`},
		"kindnet":          {file: "10-kindnet.conflist", conf: `{"name":"k","plugins":[{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.244.1.0/24"}]]}},{"type":"portmap"}]}`},
		"Calico":           {file: "10-calico.conflist", conf: `{"name":"k","plugins":[{"type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}]}`},
		"Cilium":           {file: "05-cilium.conflist", conf: `{"name":"k","plugins":[{"type":"cilium-cni"}]}`},
		"flannel":          {file: "10-flannel.conflist", conf: flannelCNI},
		"other addresses":  {file: "1.conf", conf: `{"name":"b","type":"bridge","ipam":{"type":"dhcp","subnet":"10.1.0.0/24"}}`},
		"odd ranges":       {file: "1.conf", conf: `{"name":"b","type":"bridge","ipam":{"type":"host-local","ranges":"x"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := at(t, layOut(t, files{dir + c.file: c.conf})).Network(t.Context()).Conflist
			require.Empty(t, got.Problem)
			require.Equal(t, c.bridged, got.Bridged)
			require.Equal(t, c.borrowed, got.Borrowed)
		})
	}
}

// TestAPackagesBridgeReleasesNoNode is a node on which a runtime has been installed and flannel has not.
func TestAPackagesBridgeReleasesNoNode(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true, PodCIDR: "10.244.3.0/24"}}
	node.Annotations = map[string]string{"holdfast.dev/hold": `{"state":"held","bootID":"` + bootID + `","since":"2026-11-20T12:00:00Z","reason":"NewNode"}`}
	conf := func(subnet string) string {
		return `{"name":"b","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]]}}]}`
	}
	held := func(name, subnet string) bool {
		root := layOut(t, files{"/etc/cni/net.d/" + name: conf(subnet), "/opt/cni/bin/bridge": script, "/opt/cni/bin/host-local": script})
		return readiness.Decide(node, at(t, root).Network(t.Context()), readiness.Policy{}, time.Now()).Held
	}
	for _, name := range []string{"11-crio-ipv4-bridge.conflist", "nerdctl-bridge.conflist", "10-containerd-net.conflist", "100-crio-bridge.conflist", "10-mine.conflist"} {
		require.True(t, held(name, "10.85.0.0/16"), name)
	}
	for _, name := range []string{"10-containerd-net.conflist", "10-mine.conflist"} {
		require.False(t, held(name, "10.244.3.0/24"), name)
	}
}
