// Package metricsserver serves /metrics as every program of Holdfast does. Over HTTPS, the API
// server authenticates each client (TokenReview) and authorizes it (SubjectAccessReview), as the
// filters of controller-runtime do.
package metricsserver

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

const (
	// admittedFor and refusedFor are how long an answer of the API server is valid. A token that is
	// revoked works for so long; a permission that is added takes effect so late.
	admittedFor = time.Minute
	refusedFor  = 10 * time.Second
	// knownFor is how long an admitted token, and the address from which it came, have a budget of
	// their own. A scraper's token is replaced after an hour.
	knownFor = time.Hour
	// maxAnswers limits the memory for admitted tokens, for their addresses, and for refused tokens.
	maxAnswers = 64
	// reviewsPerSecond and reviewBurst limit the requests to the API server from each budget. Two
	// requests answer for a token for a minute.
	reviewsPerSecond, reviewBurst = 1, 10
	reviewTimeout                 = 5 * time.Second
)

// An Authorizer admits the clients that may get Path: RBAC must allow them the verb get on that
// non-resource URL. Every other request is refused, even if the API server does not answer.
//
// Three budgets limit its requests to the API server, so that any number of unknown tokens
// affects no client that was admitted before. One is for tokens that were admitted, one for other
// tokens from the same addresses, and one for the rest.
type Authorizer struct {
	api rest.Interface
	// admitted contains the time until which each token that was admitted is valid. It is kept for
	// knownFor.
	admitted *cache.LRUExpireCache
	// addresses contains those of admitted clients.
	addresses *cache.LRUExpireCache
	refused   *cache.LRUExpireCache
	log       *slog.Logger

	renewals, fromKnown, fromOthers *rate.Limiter

	mu     sync.Mutex // guards logged
	logged loop.LogOnce
}

// A clientAnswer is the HTTP status for a client, and its text.
type clientAnswer struct {
	status int
	text   string
}

// NewAuthorizer returns an Authorizer. The configuration is that of the program's own account,
// which must be allowed to create TokenReviews and SubjectAccessReviews (ClusterRole
// system:auth-delegator).
func NewAuthorizer(config *rest.Config, log *slog.Logger) (*Authorizer, error) {
	own := rest.CopyConfig(config)
	own.QPS = -1 // The Authorizer has a limit of its own, and does not use up that of the program.
	own.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	api, err := rest.UnversionedRESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("creating a client for token reviews: %w", err)
	}
	newCache := func() *cache.LRUExpireCache { return cache.NewLRUExpireCache(maxAnswers) }
	newBudget := func() *rate.Limiter { return rate.NewLimiter(reviewsPerSecond, reviewBurst) }
	return &Authorizer{
		api: api, log: log, admitted: newCache(), addresses: newCache(), refused: newCache(),
		renewals: newBudget(), fromKnown: newBudget(), fromOthers: newBudget(),
	}, nil
}

// Require returns a handler that calls the next one for admitted clients only.
func (a *Authorizer) Require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := a.answer(r)
		switch answer.status {
		case http.StatusOK:
			next.ServeHTTP(w, r)
			return
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
		case http.StatusTooManyRequests:
			w.Header().Set("Retry-After", "1")
		}
		http.Error(w, answer.text, answer.status)
	})
}

// answer returns the answer for a request, from memory or from the API server.
func (a *Authorizer) answer(r *http.Request) clientAnswer {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return clientAnswer{http.StatusUnauthorized, "a bearer token of this Kubernetes cluster is required"}
	}
	key := sha256.Sum256([]byte(token))
	address, _, _ := net.SplitHostPort(r.RemoteAddr) // an empty address is one as well
	until, isKnown := a.admitted.Get(key)
	if isKnown && time.Now().Before(until.(time.Time)) { //nolint:forcetypeassert // It contains nothing else.
		return clientAnswer{status: http.StatusOK}
	}
	if known, ok := a.refused.Get(key); ok {
		return known.(clientAnswer) //nolint:forcetypeassert // It contains nothing else.
	}
	if !a.budget(isKnown, address).Allow() {
		return clientAnswer{http.StatusTooManyRequests, "too many unknown tokens; try again later"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	found, err := a.review(ctx, token)
	a.logFailure(ctx, err)
	if err != nil {
		return clientAnswer{http.StatusServiceUnavailable, "the API server could not review the token"}
	}
	if found.status == http.StatusOK {
		a.admitted.Add(key, time.Now().Add(admittedFor), knownFor)
		a.addresses.Add(address, nil, knownFor)
		return found
	}
	a.admitted.Remove(key)
	a.refused.Add(key, found, refusedFor)
	return found
}

// budget returns the limit for the review of a token, which was admitted before if isKnown is set.
func (a *Authorizer) budget(isKnown bool, address string) *rate.Limiter {
	if isKnown {
		return a.renewals
	}
	if _, ok := a.addresses.Get(address); ok {
		return a.fromKnown
	}
	return a.fromOthers
}

func (a *Authorizer) logFailure(ctx context.Context, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.logged.ChangedErrorKind("", err) && err != nil {
		a.log.WarnContext(ctx, "failed to authenticate a client of the metrics port", "err", err)
	}
}

// review asks the API server whose token it is, and whether that user may get the metrics.
func (a *Authorizer) review(ctx context.Context, token string) (clientAnswer, error) {
	who := authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := a.create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &who); err != nil {
		return clientAnswer{}, fmt.Errorf("reviewing a token: %w", err)
	}
	if !who.Status.Authenticated {
		return clientAnswer{http.StatusUnauthorized, "the token is not valid in this Kubernetes cluster"}, nil
	}
	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for name, values := range user.Extra {
		extra[name] = authorizationv1.ExtraValue(values)
	}
	access := authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: Path, Verb: "get"},
	}}
	if err := a.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &access); err != nil {
		return clientAnswer{}, fmt.Errorf("reviewing the access of user %q: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return clientAnswer{http.StatusForbidden, fmt.Sprintf(
			"user %q may not get %s; bind the user to the ClusterRole holdfast-metrics-reader", user.Username, Path)}, nil
	}
	return clientAnswer{status: http.StatusOK}, nil
}

// create posts a review, and reads the answer into it.
func (a *Authorizer) create(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return fmt.Errorf("encoding the request: %w", err)
	}
	answered, err := a.api.Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answered, review); err != nil {
		return fmt.Errorf("decoding the answer: %w", err)
	}
	return nil
}

// Path is where the metrics are.
const Path = "/metrics"

// maxScrapes is how many scrapes are answered at the same time. More than one Prometheus may run.
const maxScrapes = 4

// NewBuildInfo returns holdfast_build_info. The version is the result of cli.Version: the version,
// the commit after a plus sign or a space, and the version of Go at the end.
func NewBuildInfo(program, version string) prometheus.Collector {
	built := strings.Fields(version)
	release, revision, isStamped := strings.Cut(built[0], "+")
	if !isStamped && len(built) > 2 {
		revision = built[1]
	}
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "A constant 1, with the program and how it was built as labels.",
		ConstLabels: prometheus.Labels{
			"program": program, "version": release, "revision": revision, "goversion": built[len(built)-1],
		},
	}, func() float64 { return 1 })
}

// NewRegistry returns a registry of the process, of how its program was built, and of its parts.
func NewRegistry(program, version string, parts ...prometheus.Collector) (*prometheus.Registry, error) {
	registry := prometheus.NewRegistry()
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	for _, part := range append(parts, process, NewBuildInfo(program, version)) {
		if err := registry.Register(part); err != nil {
			return nil, fmt.Errorf("registering metrics: %w", err)
		}
	}
	return registry, nil
}

// Handler serves the metrics at Path.
func Handler(metrics prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}

// Secure returns a handler for the clients that an Authorizer admits, and the TLS configuration
// of its port: see NewAuthorizer and SelfSigned.
func Secure(
	metrics http.Handler, api *rest.Config, host string, log *slog.Logger,
) (http.Handler, *tls.Config, error) {
	authorizer, err := NewAuthorizer(api, log)
	if err != nil {
		return nil, nil, err
	}
	config, err := SelfSigned(host)
	return authorizer.Require(metrics), config, err
}

// SelfSigned returns the TLS configuration of a server with a certificate of its own, made now and
// kept in memory. It encrypts, and proves nothing about the server: clients do not verify it, as
// with controller-runtime's default.
func SelfSigned(host string) (*tls.Config, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate of the metrics port: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("loading the certificate of the metrics port: %w", err)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{pair},
	}, nil
}
