package plugin

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// completeNodes returns a function that completes an argument with the names of the Nodes that the
// command line does not have yet. A command with isOne takes one argument.
func (s *session) completeNodes(isOne bool) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if isOne && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		nodes := &metav1.PartialObjectMetadataList{}
		nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		if s.connect(command.Context()) != nil || s.kube.List(command.Context(), nodes) != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for i := range nodes.Items {
			if name := nodes.Items[i].Name; strings.HasPrefix(name, typed) && !slices.Contains(args, name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
