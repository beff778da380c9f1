package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/api/v1alpha1"
	"github.com/holdfast-dev/holdfast/internal/shared/apiaccess"
	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/test/fixture"
)

// A benchCluster is a cluster with Holdfast and an etcd cluster with one member per node, or
// without etcd.
type benchCluster struct {
	*fixture.Environment
	// members is the number of members of each etcd cluster, etcd the first cluster.
	members int
	// components and webhookFlags are beyond those of the shipped manifests.
	components, webhookFlags []string

	etcd     *etcd.Cluster
	clusters *apiaccess.Clusters
	// nodes deletes the nodes. It has its own connections and no client-side rate limit.
	nodes kubernetes.Interface
	stub  *stubWebhook
	// barePatches is the number of bare patches so far.
	barePatches int
}

func newBenchCluster(ctx context.Context, m measurement, t *resultTable) (_ *benchCluster, err error) {
	begun := time.Now()
	if m.members == 0 {
		t.progress("starting kube-apiserver with the manifests")
	} else {
		t.progress("starting kube-apiserver, etcd with TLS, two webhooks, and %d members and agents", m.members)
	}
	b := &benchCluster{members: m.members}
	if m.machines {
		b.components = []string{"cluster-api", "karpenter-nodeclaims"}
		b.webhookFlags = []string{"--cluster-api", "--karpenter"}
	}
	if b.Environment, err = fixture.New(fixture.Options{Name: "bench", Out: t.out}); err != nil {
		return nil, err
	}
	if err := b.start(ctx); err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx), false))
	}
	version, err := b.nodes.Discovery().ServerVersion()
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx), false))
	}
	t.progress("ready after %s, with Kubernetes %s", time.Since(begun).Round(100*time.Millisecond), version.GitVersion)
	return b, nil
}

func (b *benchCluster) start(ctx context.Context) error {
	if err := b.Start(ctx); err != nil {
		return err
	}
	admin := b.API.Admin()
	admin.WarningHandler = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(admin)
	if err != nil {
		return err
	}
	if b.clusters, err = apiaccess.NewClusters(admin, client); err != nil {
		return err
	}
	if b.nodes, err = kubernetes.NewForConfigAndClient(admin, client); err != nil {
		return err
	}
	if b.members == 0 {
		return b.Install(ctx)
	}
	return b.startEtcd(ctx)
}

// startEtcd starts the etcd cluster, Holdfast and the stub webhook.
func (b *benchCluster) startEtcd(ctx context.Context) (err error) {
	if b.etcd, err = b.startMembers(ctx, 0); err != nil {
		return err
	}
	if len(b.components) > 0 {
		if err = b.API.InstallMachines(ctx); err != nil {
			return err
		}
	}
	if err = b.Install(ctx, b.components...); err != nil {
		return err
	}
	if err = b.StartWebhooks(ctx, b.webhookFlags...); err != nil {
		return err
	}
	if err = b.startAgents(ctx, 0); err != nil {
		return err
	}
	if b.stub, err = b.startStub(ctx); err != nil {
		return err
	}
	return b.waitSettled(ctx, 1)
}

// addEtcdClusters starts etcd clusters on further nodes until there are count, one after the other.
func (b *benchCluster) addEtcdClusters(ctx context.Context, count int) error {
	for i := 1; i < count; i++ {
		if _, err := b.startMembers(ctx, i*b.members); err != nil {
			return err
		}
		if err := b.startAgents(ctx, i*b.members); err != nil {
			return err
		}
		if err := b.waitSettled(ctx, i+1); err != nil {
			return err
		}
	}
	return nil
}

// startMembers starts an etcd cluster on the nodes after the first `after` ones, and registers
// them with the role of control planes, which installers give them.
func (b *benchCluster) startMembers(ctx context.Context, after int) (*etcd.Cluster, error) {
	started, err := b.StartEtcd(ctx, etcd.Options{
		Dir: filepath.Join(b.Dir, fmt.Sprintf("etcd-after-%d", after)), Members: b.members,
		IP:   func(i int) string { return b.Net.IP(after + i) },
		Node: func(i int) string { return nodeName(after + i) },
	})
	if err != nil {
		return nil, err
	}
	for i := range b.members {
		number := after + i + 1
		if _, err := b.RegisterNode(ctx, nodeName(number), b.Net.IP(number), true); err != nil {
			return nil, err
		}
		body := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, observation.RoleLabels()[0])
		_, err := b.nodes.CoreV1().Nodes().Patch(
			ctx, nodeName(number), types.MergePatchType, body, metav1.PatchOptions{})
		if err != nil {
			return nil, fmt.Errorf("giving node %s its role: %w", nodeName(number), err)
		}
	}
	return started, nil
}

// startAgents starts the agents of the nodes after the first `after` ones, one for each member.
func (b *benchCluster) startAgents(ctx context.Context, after int) error {
	for i := range b.members {
		if err := b.StartAgent(ctx, nodeName(after+i+1)); err != nil {
			return err
		}
	}
	return nil
}

// waitSettled waits until every member of every etcd cluster is bound and healthy, and its node is
// labelled.
func (b *benchCluster) waitSettled(ctx context.Context, clusters int) error {
	return b.WaitUntil(ctx, "every member to be bound and healthy", func(ctx context.Context) error {
		list, err := b.clusters.EtcdClusters.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != clusters {
			return fmt.Errorf("found %d EtcdClusters, want %d", len(list.Items), clusters)
		}
		for i := range list.Items {
			c := &list.Items[i]
			bound, healthy := len(c.Spec.Members), c.Status.Healthy
			if bound != b.members || healthy == nil || int(*healthy) != b.members {
				return fmt.Errorf("%d of %d members are bound, and the summary is %+v", bound, b.members, c.Status)
			}
		}
		members := clusters * b.members
		nodes, err := b.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "holdfast.dev/etcd-member=true"})
		if err == nil && len(nodes.Items) != members {
			err = fmt.Errorf("%d of %d nodes are labelled", len(nodes.Items), members)
		}
		return err
	})
}

// etcdCluster returns the only EtcdCluster.
func (b *benchCluster) etcdCluster(ctx context.Context) (*v1alpha1.EtcdCluster, error) {
	list, err := b.clusters.EtcdClusters.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("found %d EtcdClusters, want 1", len(list.Items))
	}
	return &list.Items[0], nil
}

// Close stops all processes and the stub webhook.
func (b *benchCluster) Close(ctx context.Context, succeeded bool) error {
	var err error
	if b.stub != nil {
		err = b.stub.close(ctx)
	}
	return errors.Join(err, b.Environment.Close(ctx, succeeded))
}

// createWorkers creates nodes without etcd and returns their names.
func (b *benchCluster) createWorkers(
	ctx context.Context, prefix string, count int, labels map[string]string,
) ([]string, error) {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i+1)
		made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: names[i], Labels: labels}}
		if _, err := b.nodes.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("creating node %s: %w", names[i], err)
		}
	}
	return names, nil
}

// delete deletes a node and returns the duration of the request.
func (b *benchCluster) delete(ctx context.Context, name string, dryRun bool) (time.Duration, error) {
	var o metav1.DeleteOptions
	if dryRun {
		o.DryRun = []string{metav1.DryRunAll}
	}
	begun := time.Now()
	err := b.nodes.CoreV1().Nodes().Delete(ctx, name, o)
	return time.Since(begun), err
}

func nodeName(i int) string { return fmt.Sprintf("etcd-%d", i) }

const (
	stubName = "bench-stub"
	// emptyLabel selects the nodes whose deletion the empty webhook reviews instead of
	// Holdfast.
	emptyLabel = "bench.holdfast.dev/empty"
	stubPort   = 9443
)

// A stubWebhook is the benchmark's own webhook server, which the API server
// reaches through a Service like Holdfast's. The empty entry allows at once, which shows the
// cost of any webhook. The others refuse every deletion and drain of an etcd node at once. The API
// server calls all webhooks and respects every refusal. So Holdfast reviews the request completely,
// including the grant, and the node remains for the next one.
type stubWebhook struct {
	server  *http.Server
	service *apiserver.ServiceProxy
	group   errgroup.Group
}

func (b *benchCluster) startStub(ctx context.Context) (*stubWebhook, error) {
	ca, err := pki.NewCA(stubName)
	if err != nil {
		return nil, err
	}
	host := stubName + "." + fixture.Namespace + ".svc"
	pair, err := ca.Issue(pki.CertOptions{CommonName: stubName, Server: true, Hosts: []string{host}})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /allow", func(w http.ResponseWriter, r *http.Request) { writeReview(w, r, true) })
	mux.HandleFunc("POST /refuse", func(w http.ResponseWriter, r *http.Request) { writeReview(w, r, false) })
	made := &stubWebhook{server: &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}},
	}}
	made.group.Go(func() error { return made.server.ServeTLS(listener, "", "") })
	if err := b.registerStub(ctx, ca.PEM()); err != nil {
		return made, err
	}
	made.service, err = b.API.ServeService(ctx, fixture.Namespace, stubName, listener.Addr().String())
	return made, err
}

// writeReview decodes only the part of a review that the response needs.
func writeReview(w http.ResponseWriter, r *http.Request, allowed bool) {
	var review struct {
		Request struct {
			UID types.UID `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: allowed}
	if !allowed {
		response.Result = &metav1.Status{Code: http.StatusTeapot, Message: "the bench keeps its nodes"}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{ // a closed connection needs no response
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: response,
	})
}

// registerStub creates the stub's Service and webhook configuration, and excludes the nodes of
// the empty entry from Holdfast's.
func (b *benchCluster) registerStub(ctx context.Context, ca []byte) error {
	_, err := b.nodes.CoreV1().Services(fixture.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: stubName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: stubPort}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the stub's service: %w", err)
	}
	configurations := b.nodes.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	installed, err := configurations.Get(ctx, "holdfast", metav1.GetOptions{})
	if err != nil {
		return err
	}
	own := &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: stubName}}
	for _, w := range installed.Webhooks {
		etcd, path := w.FailurePolicy != nil && *w.FailurePolicy == registrationv1.Fail, "/allow"
		if etcd {
			path = "/refuse"
		} else {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{emptyLabel: "true"}}
		}
		entry, _, _ := strings.Cut(w.Name, ".")
		w.Name = entry + ".bench.holdfast.dev"
		w.ClientConfig.CABundle = ca
		w.ClientConfig.Service = &registrationv1.ServiceReference{
			Namespace: fixture.Namespace, Name: stubName, Path: &path, Port: w.ClientConfig.Service.Port,
		}
		own.Webhooks = append(own.Webhooks, w)
	}
	if _, err = configurations.Create(ctx, own, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("registering the stub: %w", err)
	}
	exclusion := fmt.Appendf(nil, `[{
		"op": "add", "path": "/webhooks/1/objectSelector/matchExpressions/-",
		"value": {"key": %q, "operator": "DoesNotExist"}
	}]`, emptyLabel)
	_, err = configurations.Patch(ctx, "holdfast", types.JSONPatchType, exclusion, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("excluding the nodes of the empty webhook from Holdfast's: %w", err)
	}
	return b.API.WaitForPolicies(ctx)
}

func (s *stubWebhook) close(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if failed := s.group.Wait(); !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	if s.service != nil {
		err = errors.Join(err, s.service.Close())
	}
	return err
}
