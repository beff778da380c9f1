package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

const (
	leaseName = "holdfast-webhook"
	// attemptTimeout limits one attempt to reach the API server at the start.
	attemptTimeout = 5 * time.Second
	// rememberedEvents is how many events client-go keeps, with their texts, to count repeated ones.
	// Its default of 4096 took 13 MB with texts of 1 KB.
	rememberedEvents = 256
	// maxZones is how many zones of Nodes share their labels.
	maxZones = 100
)

// run waits for the API server, then builds the parts and runs them until ctx ends and the
// last review is answered. It passes setReady a check of whether the replica can answer
// reviews.
func (r *replica) run(ctx context.Context, setReady func(func() error)) error {
	if err := waitForAPI(ctx, r.api, r.log); err != nil {
		return err
	}
	objects := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(objects), v1alpha1.AddToScheme(objects)); err != nil {
		return fmt.Errorf("registering the API types: %w", err)
	}
	var err error
	// The summary of SPC reads labels and conditions of all Nodes.
	trimmer := clusterstore.Trimmer{
		Departures: r.departures, ZoneLabel: r.zoneLabel, Zones: utilcache.NewLRUExpireCache(maxZones),
		KeepMetadata: isSPCConfigured(r.spc),
	}
	if r.manager, err = r.newManager(objects, trimmer.CacheOptions()); err != nil {
		return err
	}
	// The recorder must outlive ctx: the last reviews are answered after ctx has ended.
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)),
		record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: rememberedEvents}))
	defer events.Shutdown()
	if r.core, err = typedcorev1.NewForConfigAndClient(r.api, r.manager.GetHTTPClient()); err != nil {
		return fmt.Errorf("creating a client for events: %w", err)
	}
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.core.Events("")})
	r.recorder = events.NewRecorder(objects, corev1.EventSource{Component: "holdfast-webhook"})
	r.store, err = clusterstore.New(ctx, clusterstore.Options{
		Client: r.manager.GetClient(), Reader: r.manager.GetAPIReader(), Cache: r.manager.GetCache(),
		MinRemainingTolerance: r.tolerance, Trimmer: trimmer, Registerer: r.registry,
	})
	if err != nil {
		return err
	}
	if r.reviews, err = r.newReviews(); err != nil {
		return err
	}
	if r.servingCert, err = r.newCertificates(); err != nil {
		return err
	}
	if err := r.addLoops(); err != nil {
		return err
	}
	return r.serve(ctx, setReady)
}

// newManager returns the manager of caches and leader election. The manager opens no
// ports: its servers would cut off running reviews on shutdown.
func (r *replica) newManager(objects *runtime.Scheme, caches cache.Options) (manager.Manager, error) {
	// These times are long because the API server may use the etcd cluster under review,
	// which needs seconds to elect a leader. A webhook that stops gives its Lease back,
	// so the next leader does not wait.
	renew, retry := r.leaseDuration*2/3, r.leaseDuration/12
	grace := drainTime
	m, err := manager.New(r.api, manager.Options{
		Scheme:         objects,
		Logger:         logr.FromSlogHandler(r.log.With("library", "controller-runtime").Handler()),
		Cache:          caches,
		LeaderElection: r.leaderElect, LeaderElectionID: leaseName, LeaderElectionNamespace: r.namespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &r.leaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		GracefulShutdownTimeout: &grace,
		HealthProbeBindAddress:  "0",
		Metrics:                 metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return m, nil
}

// waitForAPI waits until the API server serves Holdfast's own objects, or until ctx ends.
func waitForAPI(ctx context.Context, api *rest.Config, log *slog.Logger) error {
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(api)
	if err != nil {
		return fmt.Errorf("creating a client for the API server: %w", err)
	}
	retry := loop.NewRetry(loop.Backoff(200*time.Millisecond, 10*time.Second))
	var logged loop.LogOnce
	list := func(resource string) error {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		return discoveryClient.RESTClient().Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, resource).
			Param("limit", "1").Do(attempt).Error()
	}
	for {
		err := errors.Join(list(v1alpha1.Resource), list(v1alpha1.ObservationResource))
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if logged.Changed("", err.Error()) {
			log.WarnContext(ctx, "failed to list EtcdClusters or EtcdObservations; retrying", "err", err)
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}
