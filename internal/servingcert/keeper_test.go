package servingcert

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

func TestKeepersAtAnAPIServer(t *testing.T) {
	server := testenv.NewAPIServer(t)

	t.Run("two replicas make one certificate", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, server, "two-replicas")
		s.configure(t)
		keepers := s.start(t, 2, terms{})
		require.Eventually(t, allReady(keepers), soon, 20*time.Millisecond)
		first, err := keepers[0].GetCertificate(nil)
		require.NoError(t, err)
		second, err := keepers[1].GetCertificate(nil)
		require.NoError(t, err)
		require.Equal(t, first.Certificate, second.Certificate)
		held := read(s.secret(t).Data, nil)
		require.Empty(t, held.problems)
		require.Empty(t, held.previous)
		require.Equal(t, held.pair.Certificate, first.Certificate)
		require.Equal(t, [][]byte{held.bundle(), held.bundle()}, s.bundles(t))
		require.WithinDuration(t, time.Now().Add(90*24*time.Hour), first.Leaf.NotAfter, time.Hour)
		require.WithinDuration(t, time.Now().Add(5*365*24*time.Hour), held.ca.cert.NotAfter, time.Hour)

		s.serve(t, keepers)
		require.Eventually(t, func() bool { return s.call(t.Context()) == nil }, soon, 20*time.Millisecond)
	})

	t.Run("a bundle that is taken away is put back", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, server, "wiped-bundle")
		s.configure(t)
		keepers := s.start(t, 2, terms{})
		require.Eventually(t, allReady(keepers), soon, 20*time.Millisecond)
		want := s.bundles(t)
		config := &admissionv1.ValidatingWebhookConfiguration{}
		require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Name: s.name}, config))
		config.Webhooks[1].ClientConfig.CABundle = nil
		config.Webhooks[1].Name = "renamed.holdfast.dev"
		require.NoError(t, s.client.Update(t.Context(), config))
		require.Eventually(t, func() bool { return bytes.Equal(s.bundles(t)[1], want[1]) }, soon, 20*time.Millisecond)
		require.Equal(t, want, s.bundles(t))
	})

	t.Run("without a configuration it is not ready", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, server, "late-configuration")
		keepers := s.start(t, 1, terms{})
		require.Eventually(t, func() bool {
			return strings.HasPrefix(fmt.Sprint(keepers[0].Ready()), "there is no webhook configuration")
		}, soon, 20*time.Millisecond)
		_, err := keepers[0].GetCertificate(nil)
		require.ErrorContains(t, err, "there is no webhook configuration")
		s.configure(t)
		require.Eventually(t, allReady(keepers), soon, 20*time.Millisecond)
	})

	t.Run("no call fails when the authority is rotated", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, server, "rotation")
		keepers, first := s.startServing(t)
		s.noCallFails(t, func() bool {
			held := read(s.secret(t).Data, nil)
			if held.ca == nil || held.ca.cert.Equal(first) || !held.ca.issued(held.pair) {
				return false
			}
			require.True(t, holds(held.previous, first), "the authority before is still trusted")
			return servedBy(keepers, held.pair)
		})
	})

	for name, damage := range map[string]func(*testing.T, *site){
		"the secret is overwritten": func(t *testing.T, s *site) {
			secret := s.secret(t)
			secret.Data = map[string][]byte{caCertKey: []byte("-----BEGIN"), caKeyKey: {0}, previousKey: []byte("x"), servingCert: []byte("y"), "other": nil}
			require.NoError(t, s.client.Update(t.Context(), secret))
		},
		"the secret is deleted": func(t *testing.T, s *site) {
			require.NoError(t, s.client.Delete(t.Context(), s.secret(t)))
		},
	} {
		t.Run("no call fails when "+name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, server, strings.ReplaceAll(name, " ", "-"))
			keepers, first := s.startServing(t)
			damage(t, s)
			s.noCallFails(t, func() bool {
				secret := &corev1.Secret{}
				if s.client.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: "holdfast-webhook-tls"}, secret) != nil {
					return false
				}
				held := read(secret.Data, nil)
				return held.ca != nil && !held.ca.cert.Equal(first) && held.ca.issued(held.pair) && servedBy(keepers, held.pair)
			})
		})
	}
}

func TestRunWithoutAnAPIServer(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	asked := 0
	// Any answer that is no answer will do: it is the retries and the log that are looked at.
	broken := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		http.Error(w, "no", http.StatusInternalServerError)
	})}
	var g errgroup.Group
	g.Go(func() error { return broken.Serve(nobody) })
	config := &rest.Config{Host: nobody.Addr().String(), QPS: -1}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme.Scheme})
	require.NoError(t, err)

	var log bytes.Buffer
	k, err := New(Options{
		Client: c, Namespace: "n", Secret: "s", Service: "w", Configuration: "c",
		Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	g.Go(func() error {
		require.ErrorIs(t, k.Run(ctx), context.Canceled)
		return nil
	})
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return asked > 15 }, soon, 10*time.Millisecond)
	cancel()
	require.NoError(t, broken.Close())
	require.ErrorIs(t, g.Wait(), http.ErrServerClosed)
	require.ErrorContains(t, k.Ready(), "has not been read yet")
	require.Equal(t, 1, strings.Count(log.String(), "serving certificate cannot be kept"), log.String())
	require.Equal(t, 2, strings.Count(log.String(), "serving certificate is not watched"), log.String())
}

func TestNewRefusesTermsThatCannotBeRotated(t *testing.T) {
	for name, o := range map[string]Options{
		"leaf longer than half the authority": {CAValidity: time.Hour, LeafValidity: 31 * time.Minute, Settle: time.Second},
		"settling longer than a third":        {CAValidity: time.Hour, LeafValidity: 3 * time.Minute, Settle: 61 * time.Second},
		"negative":                            {CAValidity: time.Hour, LeafValidity: -time.Minute, Settle: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(o)
			require.ErrorContains(t, err, "cannot be rotated")
		})
	}
}
