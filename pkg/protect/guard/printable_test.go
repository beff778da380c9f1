package guard

import (
	"testing"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
)

// FuzzPrintablePlan checks that no explanation of a guard pod contains what a terminal obeys,
// whatever the texts of Nodes, pods and EtcdClusters are.
func FuzzPrintablePlan(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		for name, changes := range map[string][]change{
			"present": nil, "missing": by(withoutPod), "cordoned": by(cordoned), "failed": by(failed),
			"other owner": by(otherOwner), "other node": by(otherNode), "opted in": by(optedIn), "no node": by(withoutNode),
			"no cluster": by(withoutCluster), "new node": by(newNode),
		} {
			fixture := newFixture()
			for _, change := range changes {
				change(fixture)
			}
			for _, n := range fixture.Nodes {
				hostiletext.Spread(n, text)
			}
			for _, c := range fixture.Clusters {
				hostiletext.Spread(c, text)
			}
			for _, p := range fixture.Pods {
				hostiletext.Spread(p, text)
			}
			for _, d := range Plan(fixture.State) {
				hostiletext.RequirePrintable(t, name, d.Why)
			}
		}
	})
}
