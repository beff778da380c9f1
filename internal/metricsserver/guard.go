package metricsserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/loop"
)

const (
	// admittedFor and refusedFor are how long an answer of the API server is valid. A token that is
	// revoked works for so long; a permission that is added takes effect so late.
	admittedFor = time.Minute
	refusedFor  = 10 * time.Second
	// maxAnswers limits the memory for answers.
	maxAnswers = 64
	// reviewsPerSecond and reviewBurst limit the requests to the API server for all clients. Two
	// requests answer for a token for a minute.
	reviewsPerSecond, reviewBurst = 1, 10
	reviewTimeout                 = 5 * time.Second
)

// A Guard admits the clients that may get Path: RBAC must allow them the verb get on that
// non-resource URL. Every other request is refused, also if the API server does not answer.
type Guard struct {
	api     rest.Interface
	answers *cache.LRUExpireCache
	limit   *rate.Limiter
	log     *slog.Logger

	mu     sync.Mutex // guards logged
	logged loop.LogOnce
}

// A clientAnswer is the HTTP status for a client, and its text.
type clientAnswer struct {
	status int
	text   string
}

// NewGuard returns a Guard. The configuration is that of the program's own account, which must be
// allowed to create TokenReviews and SubjectAccessReviews (ClusterRole system:auth-delegator).
func NewGuard(config *rest.Config, log *slog.Logger) (*Guard, error) {
	own := rest.CopyConfig(config)
	own.QPS = -1 // The Guard has a limit of its own, and does not use up that of the program.
	own.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	api, err := rest.UnversionedRESTClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("creating a client for token reviews: %w", err)
	}
	return &Guard{
		api: api, answers: cache.NewLRUExpireCache(maxAnswers), log: log,
		limit: rate.NewLimiter(reviewsPerSecond, reviewBurst),
	}, nil
}

// Protect returns a handler that calls the next one for admitted clients only.
func (g *Guard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch a := g.answer(r); a.status {
		case http.StatusOK:
			next.ServeHTTP(w, r)
		case http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, a.text, a.status)
		case http.StatusTooManyRequests:
			w.Header().Set("Retry-After", "1")
			http.Error(w, a.text, a.status)
		default:
			http.Error(w, a.text, a.status)
		}
	})
}

// answer returns the answer for a request, from memory or from the API server.
func (g *Guard) answer(r *http.Request) clientAnswer {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return clientAnswer{http.StatusUnauthorized, "a bearer token of this Kubernetes cluster is required"}
	}
	key := sha256.Sum256([]byte(token))
	if known, ok := g.answers.Get(key); ok {
		return known.(clientAnswer) //nolint:forcetypeassert // It contains nothing else.
	}
	if !g.limit.Allow() {
		return clientAnswer{http.StatusTooManyRequests, "too many unknown tokens; try again later"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	found, err := g.review(ctx, token)
	g.logFailure(ctx, err)
	if err != nil {
		return clientAnswer{http.StatusServiceUnavailable, "the API server could not review the token"}
	}
	valid := refusedFor
	if found.status == http.StatusOK {
		valid = admittedFor
	}
	g.answers.Add(key, found, valid)
	return found
}

// logFailure logs an error when it changes.
func (g *Guard) logFailure(ctx context.Context, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.logged.ChangedError("", err) && err != nil {
		g.log.WarnContext(ctx, "failed to authenticate a client of the metrics port", "err", err)
	}
}

// review asks the API server whose token it is, and whether that user may get the metrics.
func (g *Guard) review(ctx context.Context, token string) (clientAnswer, error) {
	who := authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if err := g.create(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &who); err != nil {
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
	if err := g.create(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &access); err != nil {
		return clientAnswer{}, fmt.Errorf("reviewing the access of user %q: %w", user.Username, err)
	}
	if !access.Status.Allowed {
		return clientAnswer{http.StatusForbidden, fmt.Sprintf(
			"user %q may not get %s; bind the user to the ClusterRole holdfast-metrics-reader", user.Username, Path)}, nil
	}
	return clientAnswer{status: http.StatusOK}, nil
}

// create posts a review, and reads the answer into it.
func (g *Guard) create(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return fmt.Errorf("encoding the request: %w", err)
	}
	answered, err := g.api.Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answered, review); err != nil {
		return fmt.Errorf("decoding the answer: %w", err)
	}
	return nil
}
