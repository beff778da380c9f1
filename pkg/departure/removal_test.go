package departure_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/pkg/departure"
)

const (
	k3sRemove, k3sDone   = "etcd.k3s.cattle.io/remove", "etcd.k3s.cattle.io/removed-node-name"
	rke2Remove, rke2Done = "etcd.rke2.cattle.io/remove", "etcd.rke2.cattle.io/removed-node-name"
)

func TestRemovalBy(t *testing.T) {
	k3s, rke2 := departure.Removal{Key: k3sRemove}, departure.Removal{Key: rke2Remove, StopsFirst: true}
	marked := annotated(k3sRemove, "true")
	for name, c := range map[string]struct {
		old, updated *corev1.Node
		want         departure.Removal
	}{
		"nothing":                    {nodeWith(), nodeWith(), departure.Removal{}},
		"set":                        {nodeWith(), nodeWith(marked), k3s},
		"set in upper case":          {nodeWith(), nodeWith(annotated(k3sRemove, "TRUE")), k3s},
		"set for RKE2":               {nodeWith(), nodeWith(annotated(rke2Remove, "true")), rke2},
		"set for both":               {nodeWith(), nodeWith(marked, annotated(rke2Remove, "true")), rke2},
		"RKE2 after k3s":             {nodeWith(marked), nodeWith(marked, annotated(rke2Remove, "true")), rke2},
		"set after false":            {nodeWith(annotated(k3sRemove, "false")), nodeWith(marked), k3s},
		"set as if removed":          {nodeWith(), nodeWith(marked, annotated(k3sDone, "m")), k3s},
		"RKE2 as if removed":         {nodeWith(), nodeWith(annotated(rke2Remove, "true"), annotated(rke2Done, "m")), rke2},
		"to be removed again":        {nodeWith(marked, annotated(k3sDone, "m")), nodeWith(marked), k3s},
		"false":                      {nodeWith(), nodeWith(annotated(k3sRemove, "false")), departure.Removal{}},
		"odd value":                  {nodeWith(), nodeWith(annotated(k3sRemove, "yes")), departure.Removal{}},
		"cancelled":                  {nodeWith(marked), nodeWith(), departure.Removal{}},
		"already set":                {nodeWith(marked), nodeWith(annotated(k3sRemove, "True")), departure.Removal{}},
		"k3s has removed the member": {nodeWith(marked), nodeWith(marked, annotated(k3sDone, "m")), departure.Removal{}},
		"k3s has joined again": {
			nodeWith(marked, annotated(k3sDone, "m")), nodeWith(annotated(k3sRemove, "false")), departure.Removal{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, departure.RemovalBy(c.old, c.updated))
		})
	}
}

// The member of a marked Node is lost until k3s has removed it.
func TestRemovalMark(t *testing.T) {
	for name, c := range map[string]struct {
		node *corev1.Node
		want string
	}{
		"k3s":     {nodeWith(annotated(k3sRemove, "true")), "annotation " + k3sRemove},
		"RKE2":    {nodeWith(annotated(rke2Remove, "True")), "annotation " + rke2Remove},
		"false":   {nodeWith(annotated(k3sRemove, "false")), ""},
		"odd":     {nodeWith(annotated(k3sRemove, "1")), ""},
		"removed": {nodeWith(annotated(k3sRemove, "true"), annotated(k3sDone, "m")), ""},
		"removed by RKE2 only": {
			nodeWith(annotated(k3sRemove, "true"), annotated(rke2Done, "m")), "annotation " + k3sRemove,
		},
		"label": {nodeWith(labelled(k3sRemove, "true")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := departure.OfOthers(c.node)
			if c.want == "" {
				require.Equal(t, departure.Mark{}, m)
				return
			}
			require.Equal(t, departure.ForGood, m.Class)
			require.Equal(t, c.want, m.String())
			require.Equal(t, "is marked for the removal of its etcd member", m.Says)
			require.True(t, m.IsRemoval())
		})
	}
}
