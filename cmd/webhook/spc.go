package main

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
)

// wantsSPC says that there is an SPC API: whoever gives a token wants it to be asked.
func wantsSPC(o spcapi.Options) bool { return o.TokenFile != "" || o.SecretDir != "" }

// checkSPC completes the flags from the environment and checks them. None of its messages repeats what was given: it may
// be the token, in the wrong place.
func checkSPC(r *raw) error {
	if !wantsSPC(r.spc) {
		if r.spc != (spcapi.Options{}) {
			return misused("--spc-url, --spc-organization, --spc-cluster and --spc-ca-file have no effect without --spc-token-file or --spc-secret-dir")
		}
		return nil
	}
	var err error
	if r.spc, err = r.spc.WithEnvironment(os.Getenv); err == nil {
		_, err = spcapi.NewClient(r.spc)
	}
	if err != nil {
		return misused("the flags that begin with --spc-: %v", err)
	}
	return nil
}

// publishing adds the SPC inventory to the leader's work if there is an SPC API.
func publishing(s setup, m manager.Manager, core typedcorev1.CoreV1Interface, recorder record.EventRecorder) error {
	if !wantsSPC(s.spc) {
		return nil
	}
	api, err := spcapi.NewClient(s.spc)
	if err != nil {
		return err
	}
	metrics := spcapi.NewMetrics()
	if err := s.registry.Register(metrics); err != nil {
		return fmt.Errorf("registering the metrics of SPC: %w", err)
	}
	publisher := &spcapi.Publisher{
		Client: api, ConfigMaps: core.ConfigMaps(s.namespace), Name: s.spcInventory, Metrics: metrics, Log: s.log,
		Nodes: func(ctx context.Context) ([]*corev1.Node, error) {
			var list corev1.NodeList
			if err := m.GetClient().List(ctx, &list); err != nil {
				return nil, fmt.Errorf("listing nodes: %w", err)
			}
			nodes := make([]*corev1.Node, 0, len(list.Items))
			for i := range list.Items {
				nodes = append(nodes, &list.Items[i])
			}
			return nodes, nil
		},
		Tell: func(about *corev1.ConfigMap, reason, message string) {
			about.Namespace = s.namespace
			recorder.Event(about, corev1.EventTypeWarning, reason, message)
		},
	}
	if err := m.Add(leading(publisher.Run)); err != nil {
		return fmt.Errorf("adding the SPC inventory: %w", err)
	}
	return nil
}
