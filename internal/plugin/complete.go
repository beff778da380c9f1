package plugin

import (
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// completeNodes completes the names of the Nodes that the command line does not have yet.
func (s *session) completeNodes(
	command *cobra.Command, args []string, _ string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	kube, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	nodes := &corev1.NodeList{}
	if err := kube.List(command.Context(), nodes); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []cobra.Completion
	for _, n := range nodes.Items {
		if !slices.Contains(args, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeNode completes the name of one Node.
func (s *session) completeNode(
	command *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.completeNodes(command, args, typed)
}
