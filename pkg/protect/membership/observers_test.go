package membership_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/pkg/protect/membership"
)

func TestObservers(t *testing.T) {
	crowd := make([]string, membership.MaxUnboundObservers+1)
	for i := range crowd {
		crowd[i] = fmt.Sprintf("n%02d", i)
	}
	last := crowd[len(crowd)-1]
	for name, test := range map[string]struct {
		bound                        string
		announcers, existing, wanted []string
		refused                      string
	}{
		"none":                       {},
		"bound, node gone":           {bound: "a", wanted: []string{"a"}},
		"announced":                  {announcers: []string{"b", "a"}, wanted: []string{"a", "b"}},
		"announced and bound":        {bound: "a", announcers: []string{"a"}, wanted: []string{"a"}},
		"neither any more":           {existing: []string{"a"}},
		"as many as may":             {announcers: crowd[1:], wanted: crowd[1:]},
		"one too many":               {announcers: crowd, wanted: crowd[:len(crowd)-1], refused: "1 more Nodes announce"},
		"one too many, older ones":   {announcers: crowd, existing: crowd[1:], wanted: crowd[1:], refused: "1 more Nodes"},
		"one too many, one of bound": {bound: last, announcers: crowd, wanted: crowd},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha1.EtcdCluster{}
			if test.bound != "" {
				b := v1alpha1.Binding{MemberID: "a", Node: test.bound, NodeUID: "u"}
				c.Spec.Members = []v1alpha1.Binding{b, b}
			}
			wanted, refused := membership.Observers(c, test.announcers, test.existing)
			require.Equal(t, test.wanted, wanted)
			require.Contains(t, refused, test.refused)
			require.Equal(t, test.refused == "", refused == "")
		})
	}
}
