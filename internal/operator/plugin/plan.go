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

type planRun struct {
	*session
	nodeSelection
	withoutReplacement bool
	tolerance          int
}

func (s *session) planCommand() *cobra.Command {
	p := &planRun{session: s}
	command := &cobra.Command{
		Use: "plan (NODE... | -l SELECTOR)", Short: "Plan a safe order to replace or remove nodes", Long: planHelp,
		ValidArgsFunction: s.completeNodes(false),
		Example: `  # Replace the nodes with etcd one after the other
  kubectl holdfast plan -l holdfast.dev/etcd-member=true
  # Shrink the cluster
  kubectl holdfast plan etcd-4 etcd-5 --without-replacement`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if p.tolerance < 0 {
				return cli.UsageErrorf("--min-remaining-tolerance=%d is negative", p.tolerance)
			}
			return p.parse(args)
		},
		RunE: s.answered(p.answer),
	}
	s.format.addTo(command)
	flags := command.Flags()
	flags.StringVarP(&p.expression, "selector", "l", "", "plan for the nodes with these labels")
	flags.BoolVar(&p.withoutReplacement, "without-replacement", false, "no node is replaced")
	flags.IntVar(&p.tolerance, "min-remaining-tolerance", 0,
		"how many voters must be in reserve after each step; at least the value of the webhook's flag")
	s.addZoneLabel(command)
	return command
}

func (p *planRun) answer(ctx context.Context, names []string) (quorum.Answer, error) {
	var plan report.Plan
	err := p.pollState(ctx, func(state report.State) (_ bool, err error) {
		state.MinRemainingTolerance = max(state.MinRemainingTolerance, p.tolerance)
		nodes, err := p.names(state.Nodes, names)
		if err == nil {
			plan, err = report.NewPlan(state, nodes, !p.withoutReplacement)
		}
		return plan.Answer == quorum.Unknown, err
	})
	if err != nil {
		return quorum.Unknown, err
	}
	return plan.Answer, p.format.write(p.Out, plan, formatPlan(plan, p.kubectl()))
}

// A nodeSelection is the Nodes that a command line names, or selects by the expression of -l.
type nodeSelection struct {
	expression string
	selector   labels.Selector
}

// parse sets the selection, or returns a usage error.
func (n *nodeSelection) parse(args []string) (err error) {
	switch {
	case len(args) == 0 && n.expression == "":
		return cli.UsageErrorf("name at least one node, or select nodes with -l")
	case len(args) > 0 && n.expression != "":
		return cli.UsageErrorf("name nodes or select them with -l, not both")
	}
	if n.selector, err = labels.Parse(n.expression); err != nil {
		return cli.UsageErrorf("-l %q is no selector: %v", n.expression, err)
	}
	return nil
}

// names returns the names of the Nodes, or those that the command line has.
func (n *nodeSelection) names(nodes []corev1.Node, names []string) ([]string, error) {
	for i := range nodes {
		if n.expression != "" && n.selector.Matches(labels.Set(nodes[i].Labels)) {
			names = append(names, nodes[i].Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no node has the labels %s", n.selector)
	}
	return names, nil
}

// formatPlan returns a plan for people. Its commands begin with this text for kubectl.
func formatPlan(p report.Plan, kubectl string) string {
	var text strings.Builder
	for i, step := range p.Steps {
		fmt.Fprintf(&text, "%d. %s drain %s --ignore-daemonsets, %s delete node %s, and then end its machine\n",
			i+1, kubectl, step.Node, kubectl, step.Node)
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
