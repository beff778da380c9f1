package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// simCluster is a Secret and a configuration with two webhooks, and API servers that may use any
// caBundle that was current within the settle time.
type simCluster struct {
	t      *testing.T
	policy Policy
	client client.WithWatch

	mu       sync.Mutex // guards the fields below
	random   *rand.Rand
	replaced []replacedBundle

	// backup is an earlier content of the Secret, and restored when it was written last.
	backup   map[string][]byte
	restored time.Time
}

// replacedBundle is a former caBundle and the time of its replacement.
type replacedBundle struct {
	caBundle []byte
	end      time.Time
}

// simReplica is a Source that can be restarted, and cut off from the API servers.
type simReplica struct {
	*Source

	cluster *simCluster
	isCut   atomic.Bool
	stop    func()
	// seen is the certificate at the last check, nil if there was none since the start.
	seen *tls.Certificate
	// unsettledUntil is when every API server accepts the certificate of a replica that had none, or
	// an expired one. While a lost CA is replaced, and after an old one was restored, the replica
	// serves the certificate of that CA without waiting.
	unsettledUntil time.Time
}

func (c *simCluster) randomUpTo(limit time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.random.Int64N(int64(limit)))
}

func (c *simCluster) caBundle() []byte {
	config := &admissionv1.ValidatingWebhookConfiguration{}
	require.NoError(c.t, c.client.Get(c.t.Context(), client.ObjectKey{Name: "holdfast"}, config))
	require.Equal(c.t, config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[1].ClientConfig.CABundle)
	return config.Webhooks[0].ClientConfig.CABundle
}

// secret returns the content of the Secret, and writes it if change returns true.
func (c *simCluster) secret(change func(*corev1.Secret) bool) authorities {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "s"}}
	err := c.client.Get(c.t.Context(), client.ObjectKeyFromObject(secret), secret)
	require.NoError(c.t, client.IgnoreNotFound(err))
	if err == nil && change(secret) {
		require.NoError(c.t, c.client.Update(c.t.Context(), secret))
	}
	return parseSecret(secret.Data)
}

func unchanged(*corev1.Secret) bool { return false }

// start starts a replica, which must not run.
func (r *simReplica) start() {
	c := r.cluster
	reach := func(ctx context.Context) error {
		if r.isCut.Load() {
			return errors.New("cut off")
		}
		return loop.Wait(ctx, c.randomUpTo(5*time.Second), nil)
	}
	slow := interceptor.NewClient(c.client, interceptor.Funcs{
		Get: func(
			ctx context.Context, to client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if err := reach(ctx); err != nil {
				return err
			}
			return errors.Join(to.Get(ctx, key, o, options...), reach(ctx)) // the answer takes time too
		},
		Create: func(ctx context.Context, to client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := reach(ctx); err != nil {
				return err
			}
			return to.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, to client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			if err := reach(ctx); err != nil {
				return err
			}
			return to.Update(ctx, o, options...)
		},
		Patch: func(
			ctx context.Context, to client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption,
		) error {
			if err := reach(ctx); err != nil {
				return err
			}
			before := c.caBundle()
			err := to.Patch(ctx, o, patch, options...)
			if err == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.replaced = append(c.replaced, replacedBundle{caBundle: before, end: time.Now()})
			}
			return err
		},
		Watch: func(
			ctx context.Context, to client.WithWatch, l client.ObjectList, options ...client.ListOption,
		) (watch.Interface, error) {
			w, err := to.Watch(ctx, l, options...)
			if err == nil {
				context.AfterFunc(ctx, w.Stop)
			}
			return w, err
		},
	})
	r.Source = New(Options{
		Client: slow, Namespace: "n", Secret: "s", Service: "w", Configuration: "holdfast",
		Policy: c.policy,
		Log:    slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.seen = nil
	r.stop = func() {
		cancel()
		require.ErrorIs(c.t, <-ended, context.Canceled)
	}
}

// requireAccepted requires that each API server accepts the certificate of each ready replica. It
// returns the number of pairs.
func (c *simCluster) requireAccepted(replicas []*simReplica) int {
	bundles := [][]byte{c.caBundle()}
	c.mu.Lock()
	for _, b := range c.replaced {
		if time.Since(b.end) < c.policy.Settle {
			bundles = append(bundles, b.caBundle)
		}
	}
	c.mu.Unlock()
	pairs := 0
	for i, r := range replicas {
		if r.Ready() != nil {
			continue
		}
		served, err := r.GetCertificate(nil)
		require.NoError(c.t, err)
		hadNone := r.seen == nil || r.seen != served && !time.Now().Before(r.seen.Leaf.NotAfter)
		isUnsettled := c.secret(unchanged).current == nil || time.Since(c.restored) < c.policy.LeafValidity
		if r.seen = served; hadNone && isUnsettled {
			r.unsettledUntil = time.Now().Add(c.policy.Settle)
		}
		if time.Now().Before(r.unsettledUntil) {
			continue
		}
		for _, bundle := range bundles {
			pairs++
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(bundle)
			_, err := served.Leaf.Verify(x509.VerifyOptions{DNSName: "w.n.svc", Roots: roots, CurrentTime: time.Now()})
			require.NoError(c.t, err, "replica %d at %s", i, time.Now())
		}
	}
	return pairs
}

// TestSimulation runs three replicas for weeks of simulated time. Their calls take seconds, so that
// their steps interleave. They restart, are cut off, lose the Secret, and get an old one back.
func TestSimulation(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, seed) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	c := &simCluster{
		t: t, policy: Policy{CAValidity: 72 * time.Hour, LeafValidity: 12 * time.Hour, Settle: 4 * time.Hour},
		client: fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(),
		random: rand.New(rand.NewPCG(seed, 7)),
	}
	config := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "holdfast"}}
	config.Webhooks = []admissionv1.ValidatingWebhook{{Name: "one.holdfast.dev"}, {Name: "two.holdfast.dev"}}
	require.NoError(t, c.client.Create(t.Context(), config))
	var replicas []*simReplica
	for range 3 {
		r := &simReplica{cluster: c}
		r.start()
		replicas = append(replicas, r)
	}
	pairs, used := 0, map[string]bool{}
	for began := time.Now(); time.Since(began) < 10*24*time.Hour; {
		r := replicas[c.randomUpTo(3)]
		switch n := c.randomUpTo(100); {
		case n < 3:
			r.stop()
			r.start()
		case n < 6:
			r.isCut.Store(!r.isCut.Load())
		case n == 6:
			c.secret(func(s *corev1.Secret) bool { s.Data = nil; return true })
		case n == 7:
			c.secret(func(s *corev1.Secret) bool { delete(s.Data, "ca.key"); return true })
		case n == 8:
			c.secret(func(s *corev1.Secret) bool { c.backup = s.Data; return false })
		case n == 9 && c.backup != nil:
			c.secret(func(s *corev1.Secret) bool { s.Data = c.backup; return true })
			c.restored = time.Now()
		}
		require.NoError(t, loop.Wait(t.Context(), c.randomUpTo(4)*c.randomUpTo(20*time.Minute), nil))
		pairs += c.requireAccepted(replicas)
		if ca := c.secret(unchanged).current; ca != nil {
			used[ca.Leaf.SerialNumber.String()] = true
		}
	}
	for _, r := range replicas {
		r.stop()
	}
	require.Greater(t, pairs, 500)
	require.Greater(t, len(used), 3, "the CA was never rotated")
}
