// Command uninstall removes what Holdfast has put on the Nodes and Machines of a cluster, and the
// guard pods. It releases the Nodes that Holdfast holds. `make uninstall` runs it after it stops
// Holdfast, and before it deletes the other objects. See docs/operations.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/holdfast-dev/holdfast/internal/cli"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

func main() { os.Exit(cli.Run(execute)) }

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, args []string, out, errOut io.Writer) int {
	set := cli.NewFlagSet("holdfast-uninstall")
	kubeconfig := set.String("kubeconfig", "", "kubeconfig `FILE`; if empty, that of KUBECONFIG, else ~/.kube/config")
	err := cli.ParseFlags(set, args, "--kubeconfig=FILE")
	switch {
	case errors.Is(err, flag.ErrHelp):
		set.SetOutput(out)
		set.Usage()
		return cli.ExitSuccess
	case err == nil:
		err = run(ctx, *kubeconfig, out)
	}
	return cli.ExitCode(errOut, "uninstall", "holdfast-uninstall --help", err)
}

// run cleans every Machine and Node that it can. The error names those that are left.
func run(ctx context.Context, kubeconfig string, out io.Writer) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client: %w", err)
	}
	machines, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("creating a client for Machines: %w", err)
	}
	// A machine that is kept by a hook costs money and blocks others: a failure with Nodes does not
	// keep the hooks.
	failed := []error{removeHooks(ctx, client.Discovery(), machines, out)}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Join(append(failed, fmt.Errorf("listing nodes: %w", err))...)
	}
	for _, node := range list.Items {
		changed, closedBy, err := cleanNode(ctx, client, node.Name)
		switch {
		case apierrors.IsNotFound(err): // deleted in the meantime
		case err != nil:
			failed = append(failed, err)
		case closedBy != "":
			fmt.Fprintf(out, "node %s: cleaned; it was held and stays closed (%s); to open it: kubectl uncordon %s\n",
				node.Name, closedBy, node.Name)
		case changed:
			fmt.Fprintf(out, "node %s: cleaned\n", node.Name)
		}
	}
	return errors.Join(append(failed, removeGuards(ctx, client, out))...)
}

// removeGuards deletes the guard pods. Other pods with their label or their names are not deleted.
func removeGuards(ctx context.Context, client kubernetes.Interface, out io.Writer) error {
	pods := client.CoreV1().Pods(guard.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: guard.NodeLabel})
	if err != nil {
		return fmt.Errorf("listing guard pods: %w", err)
	}
	var failed []error
	for _, pod := range list.Items {
		if !strings.HasPrefix(pod.Name, guard.NamePrefix) || pod.DeletionTimestamp != nil {
			continue
		}
		uid := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}
		switch err := pods.Delete(ctx, pod.Name, uid); {
		case apierrors.IsNotFound(err): // deleted in the meantime
		case err != nil:
			failed = append(failed, fmt.Errorf("deleting guard pod %s: %w", pod.Name, err))
		default:
			fmt.Fprintf(out, "guard pod %s: deleted\n", pod.Name)
		}
	}
	return errors.Join(failed...)
}

// cleanNode cleans one Node, and retries if the Node changes in the meantime. It returns
// whether it changed anything, and closedBy as planCleanup does.
func cleanNode(
	ctx context.Context, client kubernetes.Interface, name string,
) (changed bool, closedBy string, err error) {
	nodes := client.CoreV1().Nodes()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", name, err)
		}
		patches, reason, err := planCleanup(node, time.Now())
		if err != nil {
			return err
		}
		// The first write removes the hold record. A retry finds no hold, so keep the
		// first reason.
		if reason != "" {
			closedBy = reason
		}
		for _, p := range patches {
			var subresources []string
			if p.Subresource != "" {
				subresources = []string{p.Subresource}
			}
			options := metav1.PatchOptions{FieldManager: "holdfast-uninstall"}
			if _, err := nodes.Patch(ctx, name, p.Type, p.Body, options, subresources...); err != nil {
				return fmt.Errorf("patching node %s: %w", name, err)
			}
			changed = true
		}
		return nil
	})
	return changed, closedBy, err
}
