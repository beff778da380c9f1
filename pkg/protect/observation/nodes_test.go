package observation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
)

// F97: a UUID in the other byte order looked like another machine, and the grant ended.
func TestMachine(t *testing.T) {
	upper := observation.NewMachine("", "4C4C4544-0042")
	require.False(t, upper.IsOther(observation.NewMachine("", "4c4c4544-0042")), "old kernels print upper case")
	require.True(t, upper.IsOther(observation.NewMachine("", "4c4c4544-0043")))
	vm := observation.NewMachine("", "420F8A1C-03D2-4C5E-9b7a-0123456789ab")
	require.False(t, vm.IsOther(observation.NewMachine("", "1c8a0f42-d203-5e4c-9b7a-0123456789ab")),
		"the other byte order")
	require.True(t, vm.IsOther(observation.NewMachine("", "1c8a0f42-d203-5e4c-7a9b-0123456789ab")),
		"a group that has one order")
	long := observation.NewMachine(strings.Repeat("a", 129), strings.Repeat("b", 128))
	require.Equal(t, observation.Machine{SystemUUID: strings.Repeat("b", 128)}, long, "a grant cannot store the other ID")
}

// The number and length of the addresses are limited, because a kubelet writes them.
func TestMachineAddresses(t *testing.T) {
	addresses := []string{strings.Repeat("a", 254), "127.0.0.1", ""}
	for i := range 20 {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d", i+10))
	}
	members := []v1alpha1.MemberStatus{{
		PeerURLs: []string{"https://10.0.0.10:2380"}, ClientURLs: []string{"https://etcd.example.org:2379"},
	}, {
		PeerURLs: []string{"https://[::ffff:10.0.0.9]:2380"},
	}}
	found := observation.MachineAddresses(members, addresses)
	require.Len(t, found, 8)
	require.Equal(t, []string{"10.0.0.10", "10.0.0.9", "10.0.0.11"}, found[:3], "all members may share a client URL")
}

func TestHasReported(t *testing.T) {
	for name, test := range map[string]struct {
		condition corev1.NodeCondition
		want      bool
	}{
		"no condition": {},
		"does not know": {
			corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: corev1.ConditionUnknown}, false,
		},
		"Ready":           {condition: corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		"found no member": {corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: corev1.ConditionFalse}, true},
		"found a member":  {corev1.NodeCondition{Type: observation.EtcdMemberCondition, Status: corev1.ConditionTrue}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{test.condition}}}
			require.Equal(t, test.want, observation.HasReported(n))
		})
	}
}
