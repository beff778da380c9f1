package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
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
	"github.com/holdfast-dev/holdfast/internal/admission"
	"github.com/holdfast-dev/holdfast/internal/clusterstore"
	"github.com/holdfast-dev/holdfast/internal/deletion"
	"github.com/holdfast-dev/holdfast/internal/guardpods"
	"github.com/holdfast-dev/holdfast/internal/holdwatch"
	"github.com/holdfast-dev/holdfast/internal/leader"
	"github.com/holdfast-dev/holdfast/internal/loop"
	"github.com/holdfast-dev/holdfast/internal/machinehook"
	"github.com/holdfast-dev/holdfast/internal/servingcert"
	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/protect/guard"
)

const (
	leaseName = "holdfast-webhook"
	// attemptTimeout limits one attempt to reach the API server at the start.
	attemptTimeout = 5 * time.Second
	// rememberedEvents is how many events client-go keeps, with their texts, to count repeated ones.
	// Its default of 4096 took 13 MB with texts of 1 KB.
	rememberedEvents = 256
)

// webhookServer builds the parts of one replica and runs them.
type webhookServer struct {
	config
	api      *rest.Config
	log      *slog.Logger
	registry prometheus.Registerer
}

// run waits for the API server, then builds the parts and runs them until ctx ends and the
// last review is answered. It passes setReady a check of whether the replica can answer
// reviews.
func (s webhookServer) run(ctx context.Context, setReady func(func() error)) error {
	if err := waitForAPI(ctx, s.api, s.log); err != nil {
		return err
	}
	objects := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(objects), v1alpha1.AddToScheme(objects)); err != nil {
		return fmt.Errorf("registering the API types: %w", err)
	}
	m, err := s.newManager(objects)
	if err != nil {
		return err
	}
	// The recorder must outlive ctx: the last reviews are answered after ctx has ended.
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)),
		record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: rememberedEvents}))
	defer events.Shutdown()
	core, err := typedcorev1.NewForConfigAndClient(s.api, m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("creating a client for events: %w", err)
	}
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: core.Events("")})
	recorder := events.NewRecorder(objects, corev1.EventSource{Component: "holdfast-webhook"})

	store, err := clusterstore.New(ctx, clusterstore.Options{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Cache: m.GetCache(),
		MinRemainingTolerance: s.tolerance, Departures: s.departures, Registerer: s.registry,
	})
	if err != nil {
		return err
	}
	reviews, err := s.newReviews(m, store, recorder)
	if err != nil {
		return err
	}
	hooks, err := s.addMachines(m, store, reviews, recorder)
	if err != nil {
		return err
	}
	if err := errors.Join(
		s.addLeader(ctx, m, store, hooks, recorder), s.addGuardPods(ctx, m, store, core),
		s.addSPCInventory(m, store, core, recorder), s.addHoldWatcher(m, store, core, recorder),
	); err != nil {
		return err
	}
	certificates, err := s.newCertificates(m)
	if err != nil {
		return err
	}
	port := &reviewPort{
		config: s.config, reviews: reviews, certificates: certificates, log: s.log, synced: make(chan struct{}),
	}
	if err := port.addTo(m); err != nil {
		return err
	}
	// Reviews need the caches, the certificate and the leader's loop. These run until the port
	// is closed, which ends the group. If one of them fails, the port lingers.
	group, running := errgroup.WithContext(context.WithoutCancel(ctx))
	setReady(func() error {
		if running.Err() != nil {
			return fmt.Errorf("a part of the webhook has ended: %w", context.Cause(running))
		}
		return port.ready()
	})
	group.Go(func() error { return m.Start(running) })
	group.Go(func() error { return certificates.Run(running) })
	group.Go(func() error { return port.serve(ctx, running) })
	return group.Wait()
}

// everyReplica is a runnable that the manager starts in every replica after the caches
// have synced.
type everyReplica func(context.Context) error

// Start runs the function.
func (f everyReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection returns false: the manager starts the runnable without the Lease.
func (everyReplica) NeedLeaderElection() bool { return false }

// onLeader returns a runnable that the manager starts in the leader only. The function
// returns the cause of ctx when ctx ends; that is no error of the runnable.
func onLeader(run func(context.Context) error) manager.RunnableFunc {
	return func(ctx context.Context) error {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		return nil
	}
}

// addLeader adds the leader's loop.
func (s webhookServer) addLeader(
	ctx context.Context, m manager.Manager, store *clusterstore.Store, hooks *machinehook.Controller,
	recorder record.EventRecorder,
) error {
	options := leader.Options{
		Store: store, Log: s.log, Registerer: s.registry, Wait: s.observerWait,
		Event: func(c *v1alpha1.EtcdCluster, reason, message string) {
			about := &corev1.ObjectReference{
				APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID,
			}
			recorder.Event(about, leader.EventType(reason), reason, message)
		},
	}
	if hooks != nil {
		options.MachineEnding = hooks.Ending
	}
	leaderLoop, err := leader.New(ctx, options)
	if err != nil {
		return err
	}
	if err := m.Add(onLeader(leaderLoop.Run)); err != nil {
		return fmt.Errorf("adding the leader's loop: %w", err)
	}
	return nil
}

// newReviews returns the handler of reviews.
func (s webhookServer) newReviews(
	m manager.Manager, store *clusterstore.Store, recorder record.EventRecorder,
) (*admission.Handler, error) {
	reviewer, err := deletion.New(deletion.Options{Store: store, Wait: s.observerWait, Registerer: s.registry})
	if err != nil {
		return nil, err
	}
	return admission.New(admission.Options{
		Reviewer: reviewer,
		Node:     liveNode(m),
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			pod := &corev1.Pod{}
			return pod, m.GetAPIReader().Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod)
		},
		Nodes: store.CachedNodes, LiveNodes: store.LiveNodes,
		Events: recorder, Log: s.log, Registerer: s.registry,
	})
}

// liveNode returns a function that reads a Node from the API server.
func liveNode(m manager.Manager) func(ctx context.Context, name string) (*corev1.Node, error) {
	return func(ctx context.Context, name string) (*corev1.Node, error) {
		node := &corev1.Node{}
		return node, m.GetAPIReader().Get(ctx, client.ObjectKey{Name: name}, node)
	}
}

// addMachines adds the loop for the Machines of Cluster API and the NodeClaims of Karpenter to the
// leader. It returns nil if both are switched off.
func (s webhookServer) addMachines(
	m manager.Manager, store *clusterstore.Store, reviews *admission.Handler, recorder record.EventRecorder,
) (*machinehook.Controller, error) {
	if !s.clusterAPI && !s.karpenter {
		return nil, nil //nolint:nilnil // There are no machines.
	}
	dynamicClient, err := dynamic.NewForConfigAndClient(s.api, m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("creating a client for machines: %w", err)
	}
	served, err := discovery.NewDiscoveryClientForConfigAndClient(s.api, m.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("creating a client for the kinds of machines: %w", err)
	}
	controller := machinehook.New(machinehook.Options{
		ClusterAPI: s.clusterAPI, Karpenter: s.karpenter, Client: dynamicClient,
		FindResource: machinehook.NewResourceFinder(served.RESTClient()),
		Cached:       machinehook.EtcdSource{Nodes: store.CachedNodes, Clusters: store.CachedClusters},
		Live:         machinehook.EtcdSource{Nodes: store.LiveNodes, Clusters: store.LiveClusters},
		Node:         liveNode(m),
		Review:       reviews.ReviewMachine, Log: s.log,
		RecordEvent: func(about *corev1.ObjectReference, eventType, reason, message string) {
			recorder.Event(about, eventType, reason, message)
		},
	})
	if err := m.Add(onLeader(controller.Run)); err != nil {
		return nil, fmt.Errorf("adding the loop for machines: %w", err)
	}
	return controller, nil
}

// addGuardPods adds the loop for guard pods to the leader.
func (s webhookServer) addGuardPods(
	ctx context.Context, m manager.Manager, store *clusterstore.Store, core typedcorev1.CoreV1Interface,
) error {
	guards, err := guardpods.New(ctx, guardpods.Options{
		Store: store, Pods: core.Pods(guard.Namespace), Departures: s.departures, Off: !s.guardDrains,
		Log: s.log, Registerer: s.registry,
	})
	if err != nil {
		return err
	}
	if err := m.Add(onLeader(guards.Run)); err != nil {
		return fmt.Errorf("adding the guard pods: %w", err)
	}
	return nil
}

// addHoldWatcher adds the watch of holds. It runs in every replica, and acts in the leader.
func (s webhookServer) addHoldWatcher(
	m manager.Manager, store *clusterstore.Store, core typedcorev1.CoreV1Interface, recorder record.EventRecorder,
) error {
	watcher, err := holdwatch.New(holdwatch.Options{
		CachedNodes: store.CachedNodes, WaitForSync: store.WaitForSync, Nodes: core.Nodes(),
		DrainedNodes: func(ctx context.Context) (map[types.UID]time.Time, error) {
			clusters, err := store.CachedClusters(ctx)
			return protect.DrainedNodes(clusters), err
		},
		ConfigMaps: core.ConfigMaps(s.namespace), Elected: m.Elected(),
		Timeouts: s.holds, RecordEvent: func(about *corev1.ObjectReference, eventType, reason, message string) {
			recorder.Event(about, eventType, reason, message)
		},
		Log: s.log, Registerer: s.registry,
	})
	if err != nil {
		return err
	}
	if err := m.Add(everyReplica(watcher.Run)); err != nil {
		return fmt.Errorf("adding the hold watcher: %w", err)
	}
	return nil
}

// addSPCInventory adds the publisher of the SPC inventory to the leader, if an SPC API is
// configured.
func (s webhookServer) addSPCInventory(
	m manager.Manager, store *clusterstore.Store, core typedcorev1.CoreV1Interface, recorder record.EventRecorder,
) error {
	if !isSPCConfigured(s.spc) {
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
		Nodes: store.CachedNodes,
		RecordEvent: func(about *corev1.ConfigMap, reason, message string) {
			about.Namespace = s.namespace
			recorder.Event(about, corev1.EventTypeWarning, reason, message)
		},
	}
	if err := m.Add(onLeader(publisher.Run)); err != nil {
		return fmt.Errorf("adding the SPC inventory: %w", err)
	}
	return nil
}

// newCertificates returns the source of the serving certificate: the files of the flags, or the
// rotator.
func (s webhookServer) newCertificates(m manager.Manager) (certificateSource, error) {
	if s.tlsCertFile != "" {
		return servingcert.NewFiles(servingcert.FilesOptions{
			CertFile: s.tlsCertFile, KeyFile: s.tlsKeyFile, Service: s.service, Namespace: s.namespace,
			Log: s.log, Registerer: s.registry,
		})
	}
	uncached, err := client.NewWithWatch(s.api, client.Options{
		Scheme: m.GetScheme(), HTTPClient: m.GetHTTPClient(), Mapper: m.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("creating a client for the serving certificate: %w", err)
	}
	return servingcert.New(servingcert.Options{
		Client: uncached, Namespace: s.namespace, Secret: s.tlsSecret, Service: s.service,
		Configuration: s.webhookConfiguration, CAValidity: s.caValidity, LeafValidity: s.certValidity,
		Settle: s.caDistributionTime, Log: s.log, Registerer: s.registry,
	})
}

// newManager returns the manager of caches and leader election. The manager opens no
// ports: its servers would cut off running reviews on shutdown.
func (s webhookServer) newManager(objects *runtime.Scheme) (manager.Manager, error) {
	// These times are long because the API server may use the etcd cluster under review,
	// which needs seconds to elect a leader. A webhook that stops gives its Lease back,
	// so the next leader does not wait.
	renew, retry := s.leaseDuration*2/3, s.leaseDuration/12
	grace := drainTime
	// The summary of SPC reads labels and conditions of all Nodes.
	trimmer := clusterstore.Trimmer{Departures: s.departures, KeepMetadata: isSPCConfigured(s.spc)}
	m, err := manager.New(s.api, manager.Options{
		Scheme:         objects,
		Logger:         logr.FromSlogHandler(s.log.With("library", "controller-runtime").Handler()),
		Cache:          cache.Options{DefaultTransform: trimmer.Trim, ReaderFailOnMissingInformer: true},
		LeaderElection: s.leaderElect, LeaderElectionID: leaseName, LeaderElectionNamespace: s.namespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &s.leaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		GracefulShutdownTimeout: &grace,
		HealthProbeBindAddress:  "0",
		Metrics:                 metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("creating the manager: %w", err)
	}
	return m, nil
}

// waitForAPI waits until the API server serves EtcdClusters, or until ctx ends.
func waitForAPI(ctx context.Context, api *rest.Config, log *slog.Logger) error {
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(api)
	if err != nil {
		return fmt.Errorf("creating a client for the API server: %w", err)
	}
	retry := loop.NewRetry(wait.Backoff{
		Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 20, Cap: 10 * time.Second,
	})
	var logged loop.LogOnce
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := discoveryClient.RESTClient().Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.Resource).
			Param("limit", "1").Do(attempt).Error()
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if logged.Changed("", err.Error()) {
			log.WarnContext(ctx, "failed to list EtcdClusters; retrying", "err", err)
		}
		if err := retry.Wait(ctx); err != nil {
			return err
		}
	}
}
