// The watcher is what the memory of an agent is compared with: a program that keeps one watch on its Node with
// client-go's typed client, and does nothing.
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

// follow reads a Node's changes and forgets them, until the context ends.
func follow(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("say a kubeconfig and the name of a node")
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
