package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/cli"
)

// fieldOwner is the name of the plugin in managedFields.
const fieldOwner = client.FieldOwner("kubectl-holdfast")

// oneArgument returns the check of a command that takes one name.
func oneArgument(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return cli.UsageErrorf("name a %s: %s", what, command.UseLine())
		case 1:
			return nil
		}
		return cli.UsageErrorf("unexpected argument %q; %s takes one %s", args[1], command.CommandPath(), what)
	}
}

// getNode reads a Node.
func getNode(ctx context.Context, c client.Client, name string) (*corev1.Node, error) {
	node := new(corev1.Node)
	err := c.Get(ctx, types.NamespacedName{Name: name}, node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no node %q; to list the nodes: kubectl get nodes", name)
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}

// completeOneNode completes the name of one Node.
func (s *session) completeOneNode(
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
	c, err := s.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names, err := list(command.Context(), c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, typed) })
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
