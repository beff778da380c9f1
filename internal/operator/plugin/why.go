package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/pkg/protect/report"
)

const whyHelp = `Show everything that Holdfast says about one node: its protection, its hold, drains, its machine,
what the webhook answers if the node were deleted now, and what to do next.

The command needs the verb list on nodes, and on etcdclusters and etcdobservations of holdfast.dev.
For the guard pod it needs list on pods in the namespace holdfast-system, and for the answer of the
webhook delete on nodes. Without these two, it shows what is missing.`

func (s *session) whyCommand() *cobra.Command {
	var format reportFormat
	command := &cobra.Command{
		Use: "why NODE", Short: "Show everything that Holdfast says about one node", Long: whyHelp,
		Example: "  kubectl holdfast why etcd-1", ValidArgsFunction: s.complete(nodeNames, true),
		Args: oneArgument("node"),
		RunE: func(command *cobra.Command, args []string) error {
			return s.why(command.Context(), args[0], format)
		},
	}
	format.addTo(command)
	return command
}

// why prints the page about a node.
func (s *session) why(ctx context.Context, node string, format reportFormat) error {
	kube, err := s.client()
	if err != nil {
		return err
	}
	ask := func(ctx context.Context) []report.Removal { return []report.Removal{dryRunDeletion(ctx, kube, node)} }
	removal := s.pollAnswers(ctx, ask, canRemoveOptions{})[0]
	state, err := readState(ctx, kube, kube, "")
	if err != nil {
		return err
	}
	addGuardPods(ctx, kube, &state)
	page, isFound := report.NewPage(state, node, removal)
	if !isFound {
		return fmt.Errorf("there is no node %s; to see all nodes: kubectl get nodes", node)
	}
	return format.write(s.Out, page, page.Text())
}
