package report_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/quorumtest"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// A cluster has three healthy voters. Without replacements, the second removal would cost quorum.
func ExampleNewPlan() {
	state := stateOf(quorumtest.Voters(3), 3)
	for _, isReplaced := range []bool{true, false} {
		plan, err := report.NewPlan(state, []string{"w1", "w2", "w3"}, isReplaced)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("replaced:", isReplaced, "answer:", plan.Answer, "steps:", len(plan.Steps), "stopped:", len(plan.Stopped))
	}
	// Output:
	// replaced: true answer: yes steps: 3 stopped: 0
	// replaced: false answer: no steps: 1 stopped: 2
}
