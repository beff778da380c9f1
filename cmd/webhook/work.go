package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
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
	"github.com/holdfast-dev/holdfast/internal/holdwatch"
	"github.com/holdfast-dev/holdfast/internal/ledger"
	"github.com/holdfast-dev/holdfast/internal/servingcert"
)

const (
	leaseName = "holdfast-webhook"
	// attemptTime bounds one attempt to reach the API server at the start.
	attemptTime = 5 * time.Second
)

// setup is what the parts are built from.
type setup struct {
	config
	api      *rest.Config
	log      *slog.Logger
	registry prometheus.Registerer
	listener net.Listener
}

// work builds the parts once the API server is there, and runs them until ctx ends. It says how to tell whether
// reviews can be answered.
func work(ctx context.Context, s setup, tellReady func(func() error)) error {
	if err := waitServed(ctx, s.api, s.log); err != nil {
		return err
	}
	objects := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(objects), v1alpha1.AddToScheme(objects)); err != nil {
		return fmt.Errorf("knowing the API's kinds: %w", err)
	}
	m, err := newManager(s, objects)
	if err != nil {
		return err
	}
	// The recorder outlives ctx: the last reviews are answered after it has ended.
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	defer events.Shutdown()
	core, err := typedcorev1.NewForConfigAndClient(s.api, m.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making a client for events: %w", err)
	}
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: core.Events("")})
	recorder := events.NewRecorder(objects, corev1.EventSource{Component: "holdfast-webhook"})

	entries, err := judging(ctx, s, m, recorder)
	if err != nil {
		return err
	}
	if err := errors.Join(publishing(s, m, core, recorder), watching(ctx, s, m, core, recorder)); err != nil {
		return err
	}
	keeper, err := newKeeper(s, m)
	if err != nil {
		return err
	}
	var synced atomic.Bool
	if err := m.Add(everywhere(func(ctx context.Context) error {
		synced.Store(true) // The manager starts this when its caches are filled.
		<-ctx.Done()
		return nil
	})); err != nil {
		return fmt.Errorf("adding the sign of filled caches: %w", err)
	}
	tellReady(func() error {
		if !synced.Load() {
			return errors.New("the lists of Nodes and EtcdClusters have not been read yet")
		}
		return keeper.Ready()
	})
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return m.Start(running) })
	group.Go(func() error { return keeper.Run(running) })
	group.Go(func() error {
		return serve(running, tls.NewListener(s.listener, tlsConfig(s.config, keeper.GetCertificate)), entries, s.log)
	})
	return group.Wait()
}

// everywhere runs in every replica, leader or not, after the caches are filled.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection is how the manager asks.
func (everywhere) NeedLeaderElection() bool { return false }

// leading makes a runnable of the leader's of something that returns the context's cause at its end.
func leading(run func(context.Context) error) manager.RunnableFunc {
	return func(ctx context.Context) error {
		if err := run(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		return nil
	}
}

// judging builds the answer to a review, and the leader's loop behind it.
func judging(ctx context.Context, s setup, m manager.Manager, recorder record.EventRecorder) (http.Handler, error) {
	book, err := ledger.New(ctx, ledger.Options{
		Client: m.GetClient(), Reader: m.GetAPIReader(), Cache: m.GetCache(), Wait: s.observerWait,
		MinRemainingTolerance: s.tolerance, Log: s.log, Registerer: s.registry,
	})
	if err != nil {
		return nil, err
	}
	leader, err := ledger.NewLeader(ctx, book, ledger.LeaderOptions{
		Tell: func(c *v1alpha1.EtcdCluster, reason, message string) {
			about := &corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion().String(), Kind: "EtcdCluster", Name: c.Name, UID: c.UID}
			recorder.Event(about, corev1.EventTypeNormal, reason, message)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := m.Add(leading(leader.Run)); err != nil {
		return nil, fmt.Errorf("adding the leader's loop: %w", err)
	}
	gate, err := admission.New(admission.Options{
		Judge: book,
		Node: func(ctx context.Context, name string) (*corev1.Node, error) {
			node := &corev1.Node{}
			return node, m.GetAPIReader().Get(ctx, client.ObjectKey{Name: name}, node)
		},
		Events: recorder, Log: s.log, Registerer: s.registry,
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	return mux, gate.Mount(mux)
}

// watching adds the watch of holds. It runs in every replica, and acts in the one that leads.
func watching(ctx context.Context, s setup, m manager.Manager, core typedcorev1.CoreV1Interface, recorder record.EventRecorder) error {
	watcher, err := holdwatch.New(ctx, holdwatch.Options{
		Cache: m.GetCache(), Nodes: core.Nodes(), ConfigMaps: core.ConfigMaps(s.namespace), Elected: m.Elected(),
		Patience: s.holds, Tell: func(about *corev1.ObjectReference, kind, reason, message string) {
			recorder.Event(about, kind, reason, message)
		},
		Log: s.log, Registerer: s.registry,
	})
	if err != nil {
		return err
	}
	if err := m.Add(everywhere(watcher.Run)); err != nil {
		return fmt.Errorf("adding the watch of holds: %w", err)
	}
	return nil
}

func newKeeper(s setup, m manager.Manager) (*servingcert.Keeper, error) {
	direct, err := client.NewWithWatch(s.api, client.Options{Scheme: m.GetScheme(), HTTPClient: m.GetHTTPClient(), Mapper: m.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("making a client for the serving certificate: %w", err)
	}
	return servingcert.New(servingcert.Options{
		Client: direct, Namespace: s.namespace, Secret: s.tlsSecret, Service: s.service, Configuration: s.webhookConfiguration,
		CAValidity: s.caValidity, LeafValidity: s.certValidity, Settle: s.certSettle, Log: s.log, Registerer: s.registry,
	})
}

// newManager returns the manager of caches and leadership. Ports are not its business: its servers would cut off
// reviews that are under way when it ends.
func newManager(s setup, objects *runtime.Scheme) (manager.Manager, error) {
	// Long, since the etcd whose loss is being judged may be the API server's own, and takes seconds to elect a leader.
	// A leader that ends gives the Lease back, so that nobody waits for it.
	renew, retry := s.leaseDuration*2/3, s.leaseDuration/12
	grace := shutdownBudget
	m, err := manager.New(s.api, manager.Options{
		Scheme: objects,
		Logger: logr.FromSlogHandler(s.log.With("library", "controller-runtime").Handler()),
		Cache: cache.Options{
			DefaultTransform: slim, ReaderFailOnMissingInformer: true,
		},
		LeaderElection: s.leaderElect, LeaderElectionID: leaseName, LeaderElectionNamespace: s.namespace,
		LeaderElectionReleaseOnCancel: true, LeaseDuration: &s.leaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		GracefulShutdownTimeout: &grace,
		HealthProbeBindAddress:  "0",
		Metrics:                 metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return m, nil
}

// slim drops what nobody reads from what is cached: a Node's list of images is most of it.
func slim(object any) (any, error) {
	if o, ok := object.(client.Object); ok {
		o.SetManagedFields(nil)
	}
	if n, ok := object.(*corev1.Node); ok {
		n.Status.Images, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil
	}
	return object, nil
}

// waitServed returns when the API server answers and serves EtcdClusters, or when ctx ends.
func waitServed(ctx context.Context, api *rest.Config, log *slog.Logger) error {
	asking, err := discovery.NewDiscoveryClientForConfig(api)
	if err != nil {
		return fmt.Errorf("making a client for the API server: %w", err)
	}
	retry := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 20, Cap: 10 * time.Second}
	failure := ""
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptTime)
		err := asking.RESTClient().Get().AbsPath("/apis", v1alpha1.Group, v1alpha1.Version, v1alpha1.Resource).Param("limit", "1").Do(attempt).Error()
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err.Error() != failure {
			failure = err.Error()
			log.WarnContext(ctx, "etcd clusters cannot be listed, trying again", "err", err)
		}
		timer := time.NewTimer(retry.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
	}
}
