package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-dev/holdfast/internal/operator/uninstall"
)

func (s *session) uninstallCommand() *cobra.Command {
	var o uninstall.Options
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove Holdfast from the cluster: its objects, and what it has put on nodes",
		Long: `Remove Holdfast from the cluster, whether it was installed by Helm or by kubectl.

First nodes are not held any more and deletions are not reviewed. Then the agents and the webhook
stop, held nodes are opened, and Holdfast's labels, annotations, conditions and hooks are removed
from Nodes and Machines. The roles, the definition of EtcdClusters and the namespace holdfast-system
go last, with all that is in it.

A cordon that Holdfast did not set stays, and so do keys and bindings that people made for Holdfast:
the command names them. If it fails, repeat it.`,
		Example: `  kubectl holdfast uninstall --dry-run   # what it would do
  kubectl holdfast uninstall --yes
  kubectl holdfast uninstall --before-helm && helm -n holdfast-system uninstall holdfast`,
		Args: noArguments,
		RunE: s.connected(func(ctx context.Context, _ []string) error { return s.uninstall(ctx, o) }),
	}
	s.addChangeFlags(command)
	command.Flags().Lookup("dry-run").Usage = "print what would be removed, and change nothing"
	command.Flags().BoolVar(&o.KeepCRD, "keep-crd", false,
		"keep the EtcdClusters with their grants, for a new installation")
	command.Flags().BoolVar(&o.BeforeHelm, "before-helm", false,
		"stop Holdfast and clean Nodes and Machines, and leave the rest to helm uninstall")
	command.MarkFlagsMutuallyExclusive("keep-crd", "before-helm")
	command.Flags().BoolVar(&o.EndWaitingMachines, "end-waiting-machines", false,
		"remove the hook also from Machines of Cluster API that are being deleted: they end without a review")
	command.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute,
		"how long to wait for each object that does not go at once")
	return command
}

func (s *session) uninstall(ctx context.Context, o uninstall.Options) error {
	o.Client, o.Out, o.DryRun = s.kube, s.Out, s.dryRun
	if s.dryRun {
		fmt.Fprintf(s.Out, "Nothing is changed in the cluster %s. This is what would happen:\n", s.config.Host)
		return uninstall.Run(ctx, o)
	}
	effects, done := describeUninstall(o, s.config.Host)
	rights, err := uninstall.Rights(ctx, o)
	if err != nil {
		return fmt.Errorf("finding what to remove: %w", err)
	}
	return s.carryOut(ctx, plannedChange{
		effects: effects, rights: rights,
		apply: func(ctx context.Context) error {
			if err := uninstall.Run(ctx, o); err != nil {
				return fmt.Errorf("%w\nHoldfast is not removed completely; repeat the command", err)
			}
			_, err := fmt.Fprintln(s.Out, done)
			return err
		},
	})
}

// describeUninstall returns what the command does to the cluster of this API server, and what it
// prints when that is done.
func describeUninstall(o uninstall.Options, server string) (effects []string, done string) {
	effects = []string{
		fmt.Sprintf("Holdfast is removed from the cluster %s.", server),
		"Nodes with etcd are not protected any more, and new nodes are not held.",
	}
	if o.BeforeHelm {
		effects[0] = fmt.Sprintf("Holdfast stops in the cluster %s, and is removed from its Nodes and Machines.", server)
		effects = append(effects, "The release of Helm stays, with the EtcdClusters: run helm uninstall afterwards.")
		return effects, "Nodes and Machines are clean. Now run: helm -n holdfast-system uninstall RELEASE"
	}
	effects = append(effects, "The namespace holdfast-system is deleted with everything in it.")
	if !o.KeepCRD {
		effects = append(effects, "All EtcdClusters are deleted: the grants of deletions and drains are forgotten.")
	}
	return effects, "Holdfast is removed."
}
