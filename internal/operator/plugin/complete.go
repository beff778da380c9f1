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

// completeNodes completes the names of the Nodes that the command line does not have yet.
func (s *session) completeNodes(
	command *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	return s.complete(command, args, typed, nodeNames)
}

// completeNode completes the name of one Node.
func (s *session) completeNode(
	command *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	return s.completeFirst(command, args, typed, nodeNames)
}

// completeGrants completes the name of an EtcdCluster with grants, or of a Node of a grant.
func (s *session) completeGrants(
	command *cobra.Command, args []string, typed string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	return s.completeFirst(command, args, typed, grantNames)
}

// completeFirst completes the first argument of a command with the names that list returns.
func (s *session) completeFirst(
	command *cobra.Command, args []string, typed string,
	list func(context.Context, client.Client) ([]string, error),
) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return s.complete(command, args, typed, list)
}

// complete completes an argument with the names that list returns and that args does not have.
func (s *session) complete(
	command *cobra.Command, args []string, typed string,
	list func(context.Context, client.Client) ([]string, error),
) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(command.Context(), c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, typed) || slices.Contains(args, name)
	})
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// nodeNames lists the names of all Nodes.
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
