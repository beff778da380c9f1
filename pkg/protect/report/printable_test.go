package report_test

import (
	"testing"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// FuzzPrintableReports checks that no report for people contains what a terminal obeys.
func FuzzPrintableReports(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		for name, c := range map[string]*quorumtest.Cluster{
			"healthy": quorumtest.Voters(3), "silent": quorumtest.Voters(3).Silent(0, 1, 2),
			"granted": quorumtest.Voters(3).Granted(1), "unhealthy": quorumtest.Voters(5).Unhealthy(0, 1),
		} {
			s := stateOf(c, 3)
			s.Nodes = append(s.Nodes, held(quorumtest.Noon().Add(-time.Hour)))
			hostiletext.Spread(&s, text)
			status := report.NewStatus(s)
			var all []string
			for _, w := range status.Warnings {
				all = append(all, w.Text)
			}
			for _, h := range status.Holds {
				all = append(all, h.Reason, h.Message)
			}
			for _, c := range status.Clusters {
				all = append(all, c.Message)
				for _, g := range c.Grants {
					for _, d := range g.Doors {
						all = append(all, d.User)
					}
				}
			}
			for i := range s.Nodes {
				page, _ := report.NewPage(s, s.Nodes[i].Name, report.Removal{Answer: quorum.Unknown, Message: "x" + text})
				for _, section := range page.Sections() {
					all = append(all, section.Lines...)
				}
			}
			hostiletext.RequirePrintable(t, name, all...)
		}
	})
}
