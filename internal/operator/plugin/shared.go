package plugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/quorum/words"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// A refusalText is the message of a refusal in parts: the sentence about its node, the lines about
// what it found, the steps, and the last resort, which names the node.
type refusalText struct {
	first, steps, lastResort string
	found                    []string
}

// parseRefusal returns the parts of a message. isRefusal is false without steps.
func parseRefusal(message string) (t refusalText, isRefusal bool) {
	facts, steps, isRefusal := strings.Cut(message, "\n"+words.StepsTitle+"\n")
	last := max(0, strings.LastIndex("\n"+steps, "\n  - "))
	lines := strings.Split(facts, "\n")
	return refusalText{first: lines[0], found: lines[1:], steps: steps[:last], lastResort: steps[last:]}, isRefusal
}

// foldRefusals returns the answers without what the refusals of several nodes have in common, and
// that in a text of its own. The steps of a refusal stay together, because the safest is the first.
func foldRefusals(answers []report.Removal) (own []report.Removal, common string) {
	var texts []refusalText
	var names []string
	for _, r := range answers {
		if t, isRefusal := parseRefusal(r.Message); isRefusal {
			texts, names = append(texts, t), append(names, r.Node)
		}
	}
	if len(texts) < 2 {
		return answers, ""
	}
	isEverywhere := func(line string) bool {
		return !slices.ContainsFunc(texts, func(t refusalText) bool { return !slices.Contains(t.found, line) })
	}
	shared := slices.DeleteFunc(slices.Clone(texts[0].found), func(line string) bool { return !isEverywhere(line) })
	steps := texts[0].steps
	hasSteps := steps != "" && !slices.ContainsFunc(texts, func(t refusalText) bool { return t.steps != steps })
	if hasSteps {
		shared = append(shared, words.StepsTitle, strings.TrimSuffix(steps, "\n"))
	}
	if len(shared) == 0 {
		return answers, ""
	}
	own = slices.Clone(answers)
	for i := range own {
		if t, isRefusal := parseRefusal(own[i].Message); isRefusal {
			lines := append([]string{t.first}, slices.DeleteFunc(t.found, isEverywhere)...)
			if !hasSteps {
				lines, t.lastResort = append(lines, words.StepsTitle), t.steps+t.lastResort
			}
			own[i].Message = strings.Join(append(lines, t.lastResort), "\n")
		}
	}
	return own, fmt.Sprintf("\nthe same for %s:\n%s\n", strings.Join(names, ", "), strings.Join(shared, "\n"))
}
