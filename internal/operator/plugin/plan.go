package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/quorum"
	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

const planHelp = `Plan a safe order in which nodes can be removed, with what must happen between the steps.

Each step is decided by the rules of the webhook, in the state after the steps before it: the
members have left the member list and, unless --without-replacement is set, a replacement has
joined for each and is healthy, in the zone that keeps the voters spread. The plan starts from the
last observations of the agents, and changes nothing. The state may change later, so ask before each
step: kubectl holdfast can-remove NODE --wait.

Exit codes:
  0  the plan has a step for every node
  1  a node must stay; the output names it, and why
  2  unknown: it is not known whether a node may go, or the command failed

The command needs the verb list on nodes, and on etcdclusters and etcdobservations of holdfast.dev,
and the verb get on deployments.apps, for the flags of the webhook. Without these flags, no voter
may go.`

// planOptions are the flags of plan.
type planOptions struct {
	format             reportFormat
	selector           string
	zoneLabel          string
	withoutReplacement bool
	tolerance          int
}

func (s *session) planCommand() *cobra.Command {
	var o planOptions
	command := &cobra.Command{
		Use: "plan (NODE... | -l SELECTOR)", Short: "Plan a safe order to replace or remove nodes", Long: planHelp,
		ValidArgsFunction: s.complete(nodeNames, false),
		Example: `  # Replace the nodes with etcd one after the other
  kubectl holdfast plan -l holdfast.dev/etcd-member=true
  # Shrink the cluster
  kubectl holdfast plan etcd-4 etcd-5 --without-replacement`,
		RunE: func(command *cobra.Command, args []string) error {
			selector, err := parseSelector(args, o.selector)
			if err != nil {
				return err
			}
			if o.tolerance < 0 {
				return cli.UsageErrorf("--min-remaining-tolerance=%d is negative", o.tolerance)
			}
			return s.plan(command.Context(), args, selector, o)
		},
	}
	o.format.addTo(command)
	flags := command.Flags()
	flags.StringVarP(&o.selector, "selector", "l", "", "plan for the nodes with these labels")
	flags.BoolVar(&o.withoutReplacement, "without-replacement", false, "no node is replaced")
	flags.IntVar(&o.tolerance, "min-remaining-tolerance", 0,
		"how many voters must be in reserve after each step; at least the value of the webhook's flag")
	addZoneLabel(command, &o.zoneLabel)
	return command
}

// parseSelector returns the selector, nil if there is none, or a usage error.
func parseSelector(args []string, text string) (labels.Selector, error) {
	switch {
	case len(args) == 0 && text == "":
		return nil, cli.UsageErrorf("name at least one node, or select nodes with -l")
	case len(args) > 0 && text != "":
		return nil, cli.UsageErrorf("name nodes or select them with -l, not both")
	case text == "":
		return nil, nil
	}
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, cli.UsageErrorf("-l %q is no selector: %v", text, err)
	}
	return selector, nil
}

// plan prints a plan for the nodes.
func (s *session) plan(ctx context.Context, nodes []string, selector labels.Selector, o planOptions) error {
	var p report.Plan
	err := s.pollState(ctx, o.zoneLabel, func(state report.State) (_ bool, err error) {
		state.MinRemainingTolerance = max(state.MinRemainingTolerance, o.tolerance)
		if nodes, err = selectedNodes(nodes, state.Nodes, selector); err != nil {
			return false, err
		}
		p, err = report.NewPlan(state, nodes, !o.withoutReplacement)
		return p.Answer == quorum.Unknown, err
	})
	if err != nil {
		return s.failUnknown(err)
	}
	return s.answer(p.Answer, o.format, p, formatPlan(p))
}

// selectedNodes returns the names of the Nodes with these labels, or the given names without a
// selector.
func selectedNodes(names []string, nodes []corev1.Node, selector labels.Selector) ([]string, error) {
	if selector == nil {
		return names, nil
	}
	var selected []string
	for i := range nodes {
		if selector.Matches(labels.Set(nodes[i].Labels)) {
			selected = append(selected, nodes[i].Name)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("no node has the labels %s", selector)
	}
	return selected, nil
}

// formatPlan returns a plan for people.
func formatPlan(p report.Plan) string {
	var text strings.Builder
	for i, step := range p.Steps {
		fmt.Fprintf(&text, "%d. kubectl drain %s --ignore-daemonsets, kubectl delete node %s, "+
			"and then end its machine\n", i+1, step.Node, step.Node)
		for _, line := range append(strings.Split(step.Message, "\n"), step.Warnings...) {
			if line != "" {
				fmt.Fprintf(&text, "   %s\n", line)
			}
		}
		for _, then := range step.Then {
			fmt.Fprintf(&text, "   then %s\n", then)
		}
	}
	switch {
	case len(p.Stopped) > 0:
		fmt.Fprintf(&text, "%s\n", stopTitle(p))
		own, common := foldRefusals(p.Stopped)
		for _, r := range own {
			fmt.Fprintf(&text, "\n%s (%s): %s\n", r.Node, r.Reason, r.Message)
		}
		text.WriteString(common)
	case len(p.Steps) > 1:
		text.WriteString("\nBefore each step: kubectl holdfast can-remove NODE --wait\n")
	}
	return text.String()
}

// stopTitle introduces the nodes that stop a plan.
func stopTitle(p report.Plan) string {
	title := "No safe order exists: these nodes must stay."
	if p.Answer == quorum.Unknown {
		title = "It is not known whether these nodes may go."
	}
	if len(p.Steps) > 0 {
		return "\n" + title + " What follows holds after the steps above."
	}
	return title
}
