package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/control/admission"
	"github.com/holdfast-dev/holdfast/internal/control/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/control/guardpods"
	"github.com/holdfast-dev/holdfast/internal/control/holdwatch"
	"github.com/holdfast-dev/holdfast/internal/control/leader"
	"github.com/holdfast-dev/holdfast/internal/control/machinehook"
	"github.com/holdfast-dev/holdfast/internal/control/review"
	"github.com/holdfast-dev/holdfast/internal/control/servingcert"
	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/control/world"
	"github.com/holdfast-dev/holdfast/internal/shared/loop"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

// The names of objects are those in the manifests.
const (
	leaseName     = "holdfast-webhook"
	serviceName   = "holdfast-webhook"
	tlsSecret     = "holdfast-webhook-tls"
	configuration = "holdfast" // the ValidatingWebhookConfiguration
	spcInventory  = "holdfast-spc-inventory"
)

const (
	// attemptTimeout limits one attempt to reach the API server at the start.
	attemptTimeout = 5 * time.Second
	// rememberedEvents is how many events client-go keeps, with their texts, to count repeated ones.
	// Its default of 4096 took 13 MB with texts of 1 KB.
	rememberedEvents = 256
	// maxZones is how many zones of Nodes share their labels.
	maxZones = 100
)

// A replica builds the parts of the webhook and runs them.
type replica struct {
	config
	api      *rest.Config
	log      *slog.Logger
	registry *prometheus.Registry

	// The parts share these, which run creates.
	manager  manager.Manager
	store    *clusterstore.Store
	core     typedcorev1.CoreV1Interface
	recorder record.EventRecorder

	reviews     *admission.Handler
	servingCert *servingcert.Source

	// ended returns why a part has ended, nil while all run. It is nil before they run.
	ended            atomic.Pointer[func() error]
	isSynced, isOpen atomic.Bool
}

// run waits for the API server, then builds the parts and runs them until ctx ends and the
// last review is answered.
func (r *replica) run(ctx context.Context) (err error) {
	if r.core, err = typedcorev1.NewForConfig(r.api); err != nil {
		return fmt.Errorf("creating a client for the API server: %w", err)
	}
	if err := waitForAPI(ctx, r.core.RESTClient(), r.log); err != nil {
		return err
	}
	objects := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(objects), v1alpha1.AddToScheme(objects)); err != nil {
		return fmt.Errorf("registering the API types: %w", err)
	}
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
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.core.Events("")})
	r.recorder = events.NewRecorder(objects, corev1.EventSource{Component: "holdfast-webhook"})
	r.store, err = clusterstore.New(ctx, clusterstore.Options{
		Client: r.manager.GetClient(), Reader: r.manager.GetAPIReader(), Cache: r.manager.GetCache(),
		MinRemainingTolerance: r.tolerance, Trimmer: trimmer, Registerer: r.registry,
	})
	if err != nil {
		return err
	}
	r.reviews = r.newReviews()
	if r.servingCert, err = r.newCertificates(); err != nil {
		return err
	}
	if err := r.addLoops(); err != nil {
		return err
	}
	return r.serve(ctx)
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
		LeaderElection: true, LeaderElectionID: leaseName, LeaderElectionNamespace: r.namespace,
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
func waitForAPI(ctx context.Context, api rest.Interface, log *slog.Logger) error {
	retry := loop.NewRetry(loop.Backoff(200*time.Millisecond, 10*time.Second))
	var logged loop.LogOnce
	list := func(resource string) error {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		return api.Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, resource).
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

func (r *replica) addLoops() error {
	controllers, err := r.newControllers()
	if err != nil {
		return err
	}
	runnables, err := world.Loop{Store: r.store, Elected: r.manager.Elected(), Log: r.log}.Runnables(controllers...)
	for _, runnable := range runnables {
		err = errors.Join(err, r.manager.Add(runnable))
	}
	return errors.Join(err, r.addSPCInventory())
}

func (r *replica) newControllers() (all []world.Controller, err error) {
	hooks, err := r.newMachines()
	if err != nil {
		return nil, err
	}
	inLeader := leader.Options{
		Store: r.store, Log: r.log, Registerer: r.registry, Wait: r.observerWait,
		RecordEvent: r.recordEvent, MaxClusters: r.maxClusters,
	}
	if hooks != nil {
		inLeader.MachineEnding = hooks.Ending
	}
	if r.clusterAPI {
		all = append(all, hooks.Controller())
	}
	guards, err := guardpods.New(guardpods.Options{
		Store: r.store, Pods: r.core.Pods(guard.Namespace), Departures: r.departures, Off: !r.guardDrains,
		Log: r.log, Registerer: r.registry,
	})
	holds := holdwatch.New(holdwatch.Options{
		LiveNodes: func(ctx context.Context) ([]*corev1.Node, error) { return r.store.LiveNodes(ctx, nil) },
		Nodes:     r.core.Nodes(), ConfigMaps: r.core.ConfigMaps(r.namespace), Timeouts: r.holds,
		RecordEvent: r.recordEvent, Log: r.log, Registerer: r.registry,
	})
	return append(all, leader.New(inLeader), guards, holds), err
}

// serve runs the loops and answers reviews until ctx ends and the last review is answered.
func (r *replica) serve(ctx context.Context) error {
	// Reviews need the caches, the certificate and the leader's loop. These run until the port
	// is closed, which ends the group. If one of them fails, the port lingers.
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	r.ended.Store(new(func() error { return context.Cause(running) }))
	group.Go(func() error { return r.manager.Start(running) })
	group.Go(func() error { return r.servingCert.Run(running) })
	group.Go(func() error { return r.store.WatchAges(running) })
	group.Go(func() error { return r.answerReviews(ctx, running) })
	return group.Wait()
}

func (r *replica) recordEvent(about *corev1.ObjectReference, eventType, reason, message string) {
	r.recorder.Event(about, eventType, reason, message)
}

func (r *replica) newReviews() *admission.Handler {
	return admission.New(admission.Options{
		Reviewer: review.New(review.Options{Store: r.store, Wait: r.observerWait}),
		Node:     r.liveNode,
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			pod := &corev1.Pod{}
			return pod, r.manager.GetAPIReader().Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
		},
		Nodes:  r.store.CachedNodes,
		Events: r.recorder, Log: r.log, Registerer: r.registry,
	})
}

func (r *replica) liveNode(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, r.manager.GetAPIReader().Get(ctx, client.ObjectKey{Name: name}, node)
}

// newMachines returns the controller for the Machines of Cluster API and the NodeClaims of
// Karpenter, or nil if both are switched off.
func (r *replica) newMachines() (*machinehook.Controller, error) {
	if !r.clusterAPI && !r.karpenter {
		return nil, nil //nolint:nilnil // There are no machines.
	}
	dynamicClient, err := dynamic.NewForConfig(r.api)
	if err != nil {
		return nil, fmt.Errorf("creating a client for machines: %w", err)
	}
	return machinehook.New(machinehook.Options{
		ClusterAPI: r.clusterAPI, Karpenter: r.karpenter, Client: dynamicClient,
		FindResource: machinehook.NewResourceFinder(r.core.RESTClient()),
		LiveNodes:    r.store.LiveNodes, LiveClusters: r.store.LiveClusters,
		Node:   r.liveNode,
		Review: r.reviews.ReviewMachine, Log: r.log,
		RecordEvent: r.recordEvent,
	}), nil
}

// addSPCInventory adds the publisher of the SPC inventory to the leader, if an SPC API is
// configured.
func (r *replica) addSPCInventory() error {
	if !isSPCConfigured(r.spc) {
		return nil
	}
	api, err := spcapi.NewClient(r.spc)
	if err != nil {
		return err
	}
	metrics := spcapi.NewMetrics()
	if err := r.registry.Register(metrics); err != nil {
		return fmt.Errorf("registering the metrics of SPC: %w", err)
	}
	publisher := &spcapi.Publisher{
		Client: api, ConfigMaps: r.core.ConfigMaps(r.namespace), Namespace: r.namespace, Name: spcInventory,
		Nodes: r.store.CachedNodes, RecordEvent: r.recordEvent, Metrics: metrics, Log: r.log,
	}
	return r.manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
		_ = publisher.Run(ctx) // It runs until ctx ends.
		return nil
	}))
}

func (r *replica) newCertificates() (*servingcert.Source, error) {
	uncached, err := client.NewWithWatch(r.api, client.Options{
		Scheme: r.manager.GetScheme(), HTTPClient: r.manager.GetHTTPClient(), Mapper: r.manager.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating a client for the serving certificate: %w", err)
	}
	options := r.certificates
	options.Service, options.Secret, options.Configuration = serviceName, tlsSecret, configuration
	options.Namespace, options.Client, options.Log, options.Registerer = r.namespace, uncached, r.log, r.registry
	return servingcert.New(options), nil
}
