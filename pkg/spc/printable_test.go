package spc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
	"github.com/holdfast-dev/holdfast/pkg/spc"
)

// FuzzPrintableReport checks that no message and problem about a machine contains what a terminal
// obeys, whatever the texts of the Node and of SPC are.
func FuzzPrintableReport(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		labelled := nodeOfAge(time.Hour, func(n *corev1.Node) {
			n.Labels = map[string]string{spc.NodeGroupLabel: "other" + text}
			n.Spec.ProviderID = "aws:///eu-west-1a/i-0769aa"
		})
		state := func(state string) spc.Record { return worker(func(r *spc.Record) { r.State = state }) }
		for name, records := range map[string][]spc.Record{
			"running": {state("running")}, "failed": {state("failed")}, "undocumented": {state("odd")},
			"draft": {draftOf("netatt9dgn-worker-2")}, "two": {state("running"), draftOf("x"), state("building")}, "none": nil,
		} {
			for i := range records {
				hostiletext.Spread(&records[i], text)
			}
			n := labelled.DeepCopy()
			hostiletext.Spread(n, text)
			x := spc.NewIndex(&spc.Inventory{AsOf: noon(), Records: records})
			m := x.Find(n)
			report, err := spc.NewReport(n, m, spc.Terms{Now: noon(), Withhold: "it has etcd" + text, Protected: true})
			require.NoError(t, err, name)
			hostiletext.RequirePrintable(t, name, m.Message, report.Problem)
		}
	})
}
