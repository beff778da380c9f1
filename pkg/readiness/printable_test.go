package readiness

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/hostiletext"
)

// FuzzPrintableDecision checks that no condition and event about a hold contains what a terminal
// obeys, whatever the texts of the Node and its host are.
func FuzzPrintableDecision(f *testing.F) {
	hostiletext.Fuzz(f, func(t *testing.T, text string) {
		held, before := recorded(Held, thisBoot, NewNode+RecordReason(text)), recorded(Released, text, NetworkReady)
		for name, c := range map[string]struct {
			node   *corev1.Node
			record nodeOption // set afterwards, because its state is no text
		}{
			"new": {node(), unchanged}, "held": {node(cordoned), held}, "uncordoned": {node(), held},
			"unreadable": {node(annotated(HoldAnnotation, "{")), unchanged}, "released": {node(), before},
		} {
			n := c.node
			n.Status.Conditions = []corev1.NodeCondition{
				{Type: NetworkHeld, Status: corev1.ConditionTrue, Reason: "x", Message: "x"},
			}
			facts := Facts{
				BootID: thisBoot, Subnet: SubnetFile{Path: "/run/x", Problem: "x", Network: "x"},
				Conflist: Conflist{Path: "/etc/x", Problem: "x", Directory: "/etc", Ignored: []string{"x"}},
			}
			hostiletext.Spread(n, text)
			c.record(n)
			hostiletext.Spread(&facts, text)
			requirePrintable(t, name, Decide(n, facts, Policy{HoldUnrecorded: true, TaintKey: holdTaint}, noon()), nil)
			for _, age := range []time.Duration{time.Minute, 5 * time.Minute, time.Hour} {
				check := CheckHold(n, HoldHistory{Age: age}, testLimits(), noon())
				requirePrintable(t, name, check.Decision, check.Event)
			}
		}
	})
}

func requirePrintable(t *testing.T, name string, d Decision, e *Event) {
	t.Helper()
	shown := []string{d.Message}
	for _, c := range d.Conditions {
		shown = append(shown, c.Message)
	}
	for _, event := range []*Event{d.Event, e} {
		if event != nil {
			shown = append(shown, event.Message)
		}
	}
	hostiletext.RequirePrintable(t, name, shown...)
}
