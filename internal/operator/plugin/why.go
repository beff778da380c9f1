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
	command := &cobra.Command{
		Use: "why NODE", Short: "Show everything that Holdfast says about one node", Long: whyHelp,
		Example: "  kubectl holdfast why etcd-1", ValidArgsFunction: s.completeNodes(true),
		Args: oneArgument("node"), RunE: s.connected(s.why),
	}
	s.format.addTo(command)
	return command
}

func (s *session) why(ctx context.Context, nodes []string) error {
	removal := (&canRemoveRun{session: s}).poll(ctx, nodes)[0]
	state, err := s.readState(ctx)
	if err != nil {
		return err
	}
	addGuardPods(ctx, s.kube, &state)
	page, isFound := report.NewPage(state, removal.Node, removal)
	if !isFound {
		return fmt.Errorf("there is no node %s; to see all nodes: kubectl get nodes", removal.Node)
	}
	return s.format.write(s.Out, page, page.Text())
}
