package plugin

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
)

// complete returns a function that completes an argument with the names that list returns and that
// the command line does not have yet. A command with isOne takes one argument.
func (s *session) complete(
	list func(context.Context, client.Client) ([]string, error), isOne bool,
) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if isOne && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if s.connect(command.Context()) != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names, err := list(command.Context(), s.kube)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			return !strings.HasPrefix(name, typed) || slices.Contains(args, name)
		})
		slices.Sort(names)
		return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
	}
}

func nodeNames(ctx context.Context, c client.Client) ([]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// grantNames lists the EtcdClusters with grants, and the nodes of these grants.
func grantNames(ctx context.Context, c client.Client) ([]string, error) {
	list := &v1alpha1.EtcdClusterList{}
	if err := c.List(ctx, list); err != nil {
		return nil, err
	}
	var names []string
	for i := range list.Items {
		for _, g := range list.Items[i].Spec.Grants {
			names = append(names, list.Items[i].Name, g.Node)
		}
	}
	return names, nil
}
