package spc_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// split returns the index of the part for a Node, or nil if no part was made for it.
func split(n *corev1.Node, records ...spc.Record) *spc.Index {
	x := spc.NewIndex(&spc.Inventory{Organization: 111, Cluster: 23391, AsOf: noon(), Records: records})
	return spc.NewIndex(x.Split([]*corev1.Node{n})[spc.PartOf(n.Name)])
}

// TestPartDecidesLikeTheList: the values are few, so that records and Nodes often share them.
func TestPartDecidesLikeTheList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(format string) string {
		if random.IntN(3) == 0 {
			return ""
		}
		return fmt.Sprintf(format, random.IntN(8))
	}
	states := []string{"running", "running", "draft", "deleting", "failed"}
	outcomes := map[spc.Outcome]int{}
	for range 3000 {
		var records []spc.Record
		for range random.IntN(12) {
			records = append(records, spc.Record{
				PK: int64(random.IntN(10)), Cluster: 23391, InstanceID: word("m%d"), ProviderNodeID: word("i-%d"),
				PrivateIP: word("10.0.0.%d"), PublicIP: word("198.51.100.%d"), Zone: word("z%d"), Role: "worker",
				State: states[random.IntN(len(states))],
			})
		}
		var nodes []*corev1.Node
		for i := range 40 {
			n := node(address(corev1.NodeInternalIP, word("10.0.0.%d")))
			address(corev1.NodeExternalIP, word("198.51.100.%d"))(n)
			n.Name, n.UID = word("m%d"), types.UID(fmt.Sprint(i))
			n.CreationTimestamp = metav1.NewTime(noon().Add(time.Duration(random.IntN(10)-8) * time.Hour))
			n.Spec.ProviderID = word("aws:///z/i-%d")
			for key, value := range map[string]string{
				corev1.LabelHostname: word("m%d"), spc.InstanceIDLabel: word("m%d"), spc.NodeIDLabel: word("%d"),
				corev1.LabelTopologyZone: word("z%d"),
			} {
				if value != "" && random.IntN(3) == 0 {
					n.Labels[key] = value
				}
			}
			nodes = append(nodes, n)
		}
		x := spc.NewIndex(&spc.Inventory{Organization: 111, Cluster: 23391, AsOf: noon(), Records: records})
		parts := x.Split(nodes)
		for _, n := range nodes {
			want, got := x.Find(n), spc.NewIndex(parts[spc.PartOf(n.Name)]).Find(n)
			if want.Outcome == spc.Unknown {
				require.Equal(t, spc.Unknown, got.Outcome)
			} else {
				require.Equal(t, want, got)
			}
			outcomes[got.Outcome]++
		}
	}
	for _, outcome := range []spc.Outcome{spc.Unknown, spc.Missing, spc.Gone, spc.Matched, spc.Conflict} {
		require.Greater(t, outcomes[outcome], 100, outcome)
	}
}

// TestPartOfAnotherNode: a part that was not made for the Node as it is now decides nothing.
func TestPartOfAnotherNode(t *testing.T) {
	n := nodeOfAge(time.Hour, nil)
	n.UID = "1"
	x := split(n, worker(nil))
	require.Equal(t, spc.Matched, x.Find(n).Outcome)
	for name, change := range map[string]func(*corev1.Node){
		"another address":     address(corev1.NodeInternalIP, "172.23.1.68"),
		"no address":          func(n *corev1.Node) { n.Status.Addresses = nil },
		"external address":    address(corev1.NodeExternalIP, "198.51.100.9"),
		"another provider ID": func(n *corev1.Node) { n.Spec.ProviderID = "aws:///z/i-9" },
		"another host name":   func(n *corev1.Node) { n.Labels[corev1.LabelHostname] = "other" },
		"another Node":        func(n *corev1.Node) { n.UID = "2" },
	} {
		t.Run(name, func(t *testing.T) {
			changed := n.DeepCopy()
			change(changed)
			m := x.Find(changed)
			require.Equal(t, spc.Unknown, m.Outcome, m.Message)
			report, err := spc.NewReport(changed, m, spc.Terms{Now: noon()})
			require.NoError(t, err)
			require.Empty(t, report.Labels)
			require.Empty(t, report.Annotations)
		})
	}
	t.Run("the labels of the match", func(t *testing.T) {
		report := newReport(t, n, spc.Terms{}, worker(nil))
		require.Equal(t, spc.Matched, x.Find(applied(n, report)).Outcome)
	})
	t.Run("labels that name another machine", func(t *testing.T) {
		none := nodeOfAge(time.Hour, func(n *corev1.Node) { n.Status.Addresses = nil })
		x := split(none, worker(nil))
		require.Equal(t, spc.Missing, x.Find(none).Outcome)
		none.Labels[spc.InstanceIDLabel] = worker(nil).InstanceID
		require.Equal(t, spc.Unknown, x.Find(none).Outcome, "the part does not have that record")
	})
}
