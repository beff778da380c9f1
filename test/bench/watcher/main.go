// The watcher is the program with which the bench compares the memory of an agent: it only
// watches its Node with client-go's typed client.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := follow(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "watcher: %v\n", err)
		os.Exit(1)
	}
}

// follow reads and discards the changes of a Node until the context ends.
func follow(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: watcher KUBECONFIG NODE")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	client, err := corev1.NewForConfig(config)
	if err != nil {
		return err
	}
	changes, err := client.Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + args[1]})
	if err != nil {
		return err
	}
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, open := <-changes.ResultChan():
			if !open {
				return errors.New("the watch has ended")
			}
		}
	}
}
