package presence

import (
	"testing"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
)

// FuzzPrintableProtection checks that neither the condition nor the annotations of a node contain
// what a terminal obeys, whatever the texts on its host are.
func FuzzPrintableProtection(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		unknown := evidence.Scan{Unknown: []string{"/etc/etcd.env"}}
		problems := unitServer()
		problems.Problems = []string{"no data"}
		for name, scan := range map[string]evidence.Scan{
			"member": scanOf(unitServer()), "unanswered": scanOf(unanswered(unitServer()), eventsServer()),
			"stopped": scanOf(stopped(problems, nil)), "unknown": unknown, "none": {}, "problems": scanOf(problems),
		} {
			in := Inputs{
				Node: quorumtest.Node(0), UID: quorumtest.UID(0), ProviderID: "openstack:///x", ClustersKnown: true,
				Annotations: map[string]string{BecauseAnnotation: "x"},
				Clusters:    []v1alpha1.EtcdCluster{*quorumtest.Voters(3).Cluster},
			}
			hostiletext.Spread(&scan, text)
			hostiletext.Spread(&in, text)
			p := Assess(scan, in)
			hostiletext.RequirePrintable(t, name, p.Because, p.Message, p.ProviderIDProblem, p.FoundMessage())
			annotations, _ := Marks(p, in.Annotations, nil, nil)
			for key, value := range annotations {
				if value != nil {
					hostiletext.RequirePrintable(t, name+" "+key, *value)
				}
			}
		}
	})
}
