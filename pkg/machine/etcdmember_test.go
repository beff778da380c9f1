package machine_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/machine"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

func TestEtcdMemberMayBeOn(t *testing.T) {
	member, err := machine.ParseEtcdMember([]byte(`{"metadata":{"name":"c1"},"spec":{"leave":true},
		"status":{"peerAddress":"10.0.0.1","memberID":"3a"}}`))
	require.NoError(t, err)
	require.Equal(t, machine.EtcdMember{Name: "c1", PeerAddress: "10.0.0.1", Member: "3a", Leaves: true}, member)
	_, err = machine.ParseEtcdMember([]byte(`{"spec":{"leave":"yes"}}`))
	require.ErrorContains(t, err, "parsing the EtcdMember")

	announcing := func(annotation string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Annotations = map[string]string{observation.AnnouncementAnnotation: annotation}
		}
	}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"name":                               {func(n *corev1.Node) { n.Name = "c1" }, true},
		"address":                            {func(n *corev1.Node) { n.Status.Addresses[0].Address = "10.0.0.1" }, true},
		"announcement":                       {announcing(`[{"cluster":"cd","member":"3a"}]`), true},
		"announcement that cannot be parsed": {announcing(`[`), true},
		"another member":                     {announcing(`[{"cluster":"cd","member":"3b"}]`), false},
		"another Node":                       {func(*corev1.Node) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{
					Name: "n2", Labels: map[string]string{observation.EtcdMemberLabel: observation.EtcdMemberLabelValue},
				},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}},
			}
			c.change(n)
			require.Equal(t, c.want, member.MayBeOn(n))
		})
	}
	require.False(t, machine.EtcdMember{Name: "c1"}.MayBeOn(&corev1.Node{}), "no address and no ID")
}
