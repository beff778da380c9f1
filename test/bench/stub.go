package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
)

const (
	stubName = "bench-stub"
	// emptyLabel selects the nodes whose deletion the empty webhook answers, in Holdfast's place.
	emptyLabel = "bench.holdfast.dev/empty"
	stubPort   = 9443
)

// stub is a webhook server of the bench's own with two entries, reached like Holdfast's through a Service. The empty one
// allows at once: it is what a deletion costs with any webhook at all. The other refuses at once the deletion of nodes
// with etcd: the API server asks all webhooks and heeds every refusal, so that Holdfast's verdict is made in full, grant
// included, and the node is there for the next one.
type stub struct {
	server  *http.Server
	service *testenv.ServiceProxy
	group   errgroup.Group
}

func (s *stage) startStub(ctx context.Context) (*stub, error) {
	ca, err := testenv.NewCA(stubName)
	if err != nil {
		return nil, err
	}
	pair, err := ca.Issue(testenv.CertOptions{CommonName: stubName, Server: true, Hosts: []string{stubName + "." + site.Namespace + ".svc"}})
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
	mux.HandleFunc("POST /allow", func(w http.ResponseWriter, r *http.Request) { answer(w, r, true) })
	mux.HandleFunc("POST /refuse", func(w http.ResponseWriter, r *http.Request) { answer(w, r, false) })
	made := &stub{server: &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Second,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}},
	}}
	made.group.Go(func() error { return made.server.ServeTLS(listener, "", "") })
	if err := s.registerStub(ctx, ca.PEM()); err != nil {
		return made, err
	}
	made.service, err = s.API.ServeService(ctx, site.Namespace, stubName, listener.Addr().String())
	return made, err
}

// answer reads of a review no more than it needs to answer.
func answer(w http.ResponseWriter, r *http.Request, allowed bool) {
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
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{ // whoever has hung up needs no answer
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: response,
	})
}

// registerStub makes the stub's Service and configuration, and takes the nodes of the empty entry from Holdfast's.
func (s *stage) registerStub(ctx context.Context, ca []byte) error {
	_, err := s.nodes.CoreV1().Services(site.Namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: stubName},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: stubPort}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making the stub's service: %w", err)
	}
	configurations := s.nodes.AdmissionregistrationV1().ValidatingWebhookConfigurations()
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
		w.Name = path[1:] + ".bench.holdfast.dev"
		w.ClientConfig.CABundle = ca
		w.ClientConfig.Service = &registrationv1.ServiceReference{
			Namespace: site.Namespace, Name: stubName, Path: &path, Port: w.ClientConfig.Service.Port,
		}
		own.Webhooks = append(own.Webhooks, w)
	}
	if _, err = configurations.Create(ctx, own, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("registering the stub: %w", err)
	}
	keep := fmt.Sprintf(`[{"op":"add","path":"/webhooks/1/objectSelector/matchExpressions/-","value":{"key":%q,"operator":"DoesNotExist"}}]`, emptyLabel)
	if _, err = configurations.Patch(ctx, "holdfast", types.JSONPatchType, []byte(keep), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("taking the nodes of the empty webhook from holdfast's: %w", err)
	}
	return s.API.Obeyed(ctx)
}

func (s *stub) close(ctx context.Context) error {
	err := s.server.Shutdown(ctx)
	if failed := s.group.Wait(); !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	if s.service != nil {
		err = errors.Join(err, s.service.Close())
	}
	return err
}
