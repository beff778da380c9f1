// Package apiaccess says how a program of Holdfast reaches the API server.
package apiaccess

import (
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options say how. Kubeconfig is a file; empty means that the program runs in a pod and has its service account.
type Options struct {
	Kubeconfig string
	// UserAgent is what the API server's audit log shows.
	UserAgent string
	// QPS and Burst are the client's own limits of requests a second.
	QPS   float32
	Burst int
}

// Config returns the configuration of a client. Outside of a pod and without a kubeconfig the error is
// rest.ErrNotInCluster.
func Config(o Options) (*rest.Config, error) {
	config, err := read(o.Kubeconfig)
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("reading how to reach the API server: %w", err)
	}
	config.UserAgent, config.QPS, config.Burst = o.UserAgent, o.QPS, o.Burst
	return config, nil
}

func read(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
}
