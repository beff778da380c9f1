package plugin

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

// A refusalText is the message of a refusal in parts: the sentence about its node, the lines about
// what it found, the title of the steps, the steps, and the last resort, which names the node.
type refusalText struct {
	first, title, lastResort string
	found, steps             []string
}

// parseRefusal returns the parts of a message. isRefusal is false without steps.
func parseRefusal(message string) (t refusalText, isRefusal bool) {
	for i, line := range strings.Split(message, "\n") {
		switch last := len(t.steps) - 1; {
		case i == 0:
			t.first = line
		case strings.HasPrefix(line, "  - ") && t.title != "":
			t.steps = append(t.steps, line)
		case last >= 0:
			t.steps[last] += "\n" + line
		case strings.HasPrefix(line, "  "):
			t.found = append(t.found, line)
		default:
			t.title = line
		}
	}
	if len(t.steps) == 0 {
		return t, false
	}
	t.steps, t.lastResort = t.steps[:len(t.steps)-1], t.steps[len(t.steps)-1]
	return t, true
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
	hasSteps := len(texts[0].steps) > 0 && !slices.ContainsFunc(texts, func(t refusalText) bool {
		return t.title != texts[0].title || !slices.Equal(t.steps, texts[0].steps)
	})
	if hasSteps {
		shared = append(append(shared, texts[0].title), texts[0].steps...)
	}
	if len(shared) == 0 {
		return answers, ""
	}
	own = slices.Clone(answers)
	for i := range own {
		if t, isRefusal := parseRefusal(own[i].Message); isRefusal {
			lines := append([]string{t.first}, slices.DeleteFunc(t.found, isEverywhere)...)
			if !hasSteps {
				lines = append(append(lines, t.title), t.steps...)
			}
			own[i].Message = strings.Join(append(lines, t.lastResort), "\n")
		}
	}
	return own, fmt.Sprintf("\nthe same for %s:\n%s\n", strings.Join(names, ", "), strings.Join(shared, "\n"))
}
