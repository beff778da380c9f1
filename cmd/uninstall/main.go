// Command uninstall takes everything off the Nodes of a cluster that Holdfast has put there, and opens those that it holds.
// `make uninstall` runs it, between stopping Holdfast and deleting the rest of it; docs/operations.md has the order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server; empty takes KUBECONFIG, or else ~/.kube/config")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *kubeconfig, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run cleans every Node that it can. The error names those that are left.
func run(ctx context.Context, kubeconfig string, out io.Writer) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return fmt.Errorf("reading how to reach the API server: %w", err)
	}
	config.QPS, config.Burst = 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	var failed []error
	for _, node := range list.Items {
		changed, stays, err := cleanNode(ctx, client, node.Name)
		switch {
		case apierrors.IsNotFound(err): // deleted meanwhile
		case err != nil:
			failed = append(failed, err)
		case stays != "":
			fmt.Fprintf(out, "node %s: everything of Holdfast's is taken off; it was held and stays closed, since %s; afterwards: kubectl uncordon %s\n",
				node.Name, stays, node.Name)
		case changed:
			fmt.Fprintf(out, "node %s: everything of Holdfast's is taken off\n", node.Name)
		}
	}
	return errors.Join(failed...)
}

// cleanNode cleans one Node, and says whether there was anything to clean, and why it stays closed if it does. A Node that
// changes meanwhile is read again.
func cleanNode(ctx context.Context, client kubernetes.Interface, name string) (changed bool, stays string, err error) {
	nodes := client.CoreV1().Nodes()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", name, err)
		}
		patches, closed, err := clean(node, time.Now())
		if err != nil {
			return err
		}
		if closed != "" { // The first write takes the record off, without which a second look knows of no hold.
			stays = closed
		}
		for _, p := range patches {
			var subresources []string
			if p.Subresource != "" {
				subresources = []string{p.Subresource}
			}
			if _, err := nodes.Patch(ctx, name, p.Type, p.Body, metav1.PatchOptions{FieldManager: "holdfast-uninstall"}, subresources...); err != nil {
				return fmt.Errorf("patching node %s: %w", name, err)
			}
			changed = true
		}
		return nil
	})
	return changed, stays, err
}
