package servingcert

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/apiserver"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
)

func TestRotator(t *testing.T) {
	server := apiserver.New(t)

	t.Run("two replicas", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, server, "two-replicas")
		f.createConfiguration(t)
		rotators := f.start(t, 2, testPolicy())
		require.Eventually(t, allReady(rotators), waitTime, 20*time.Millisecond)
		content := parseSecret(f.secret(t).Data)
		require.NoError(t, content.problem)
		require.Equal(t, encode(t, authorities{next: content.next}), f.secret(t).Data, "the Secret has the CA only")
		ca := encodeCerts(content.next.Leaf)
		require.Equal(t, [][]byte{ca, ca}, f.caBundles(t))
		require.WithinDuration(t, time.Now().Add(5*365*24*time.Hour), content.next.Leaf.NotAfter, time.Hour)
		for _, r := range rotators {
			require.True(t, content.next.hasIssued(r.servedCert()))
			require.WithinDuration(t, time.Now().Add(90*24*time.Hour), r.servedCert().Leaf.NotAfter, time.Hour)
		}
		require.NotEqual(t, rotators[0].servedCert().Certificate, rotators[1].servedCert().Certificate)

		f.serve(t, rotators[0].GetCertificate, rotators[1].GetCertificate)
		require.Eventually(t, func() bool { return f.call(t.Context()) == nil }, waitTime, 20*time.Millisecond)
	})

	t.Run("removed caBundle", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, server, "removed-bundle")
		f.createConfiguration(t)
		rotators := f.start(t, 2, testPolicy())
		require.Eventually(t, allReady(rotators), waitTime, 20*time.Millisecond)
		want := f.caBundles(t)
		config := f.configuration(t)
		config.Webhooks[1].ClientConfig.CABundle = nil
		config.Webhooks[1].Name = "renamed.holdfast.dev"
		require.NoError(t, f.client.Update(t.Context(), config))
		require.Eventually(t, func() bool { return bytes.Equal(f.caBundles(t)[1], want[1]) }, waitTime, 20*time.Millisecond)
		require.Equal(t, want, f.caBundles(t))
	})

	t.Run("late configuration", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, server, "late-configuration")
		rotators := f.start(t, 1, testPolicy())
		require.Eventually(t, func() bool {
			return strings.HasPrefix(fmt.Sprint(rotators[0].Ready()), "no webhook is configured")
		}, waitTime, 20*time.Millisecond)
		_, err := rotators[0].GetCertificate(nil)
		require.ErrorContains(t, err, "no webhook is configured")
		f.createConfiguration(t)
		require.Eventually(t, allReady(rotators), waitTime, 20*time.Millisecond)
	})

	t.Run("Secret of another type", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, server, "other-type")
		f.createConfiguration(t)
		theirs := map[string][]byte{"tls.crt": []byte("a"), "tls.key": []byte("b")}
		require.NoError(t, f.client.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.name, Name: secretName}, Type: corev1.SecretTypeTLS, Data: theirs,
		}))
		require.Eventually(t, allReady(f.start(t, 1, testPolicy())), waitTime, 20*time.Millisecond)
		require.Subset(t, f.secret(t).Data, theirs, "its type requires these entries")
	})

	// TestSimulation also deletes the Secret, and has many rotations.
	t.Run("overwritten Secret", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, server, "overwritten-secret")
		rotators, first := f.startServing(t)
		secret := f.secret(t)
		secret.Data = map[string][]byte{
			"ca.crt": []byte("-----BEGIN"), "ca.key": {0}, "next-ca.crt": []byte("x"), "other": nil,
		}
		require.NoError(t, f.client.Update(t.Context(), secret))
		f.requireNoFailedCall(t, func() bool { return f.isReplaced(t, first, rotators) })
		require.Contains(t, string(f.caBundles(t)[0]), string(encodeCerts(first.Leaf)), "the previous CA is still trusted")
	})
}

func TestRunWithoutAPIServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var requests atomic.Int32
	failing := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "no", http.StatusInternalServerError)
	})}
	var g errgroup.Group
	g.Go(func() error { return failing.Serve(listener) })

	var log testlog.Buffer
	r := New(Options{
		Client:    newClient(t, &rest.Config{Host: listener.Addr().String(), QPS: -1}),
		Namespace: "n", Secret: "s", Service: "w", Configuration: "c", Policy: testPolicy(),
		Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	g.Go(func() error {
		require.ErrorIs(t, r.Run(ctx), context.Canceled)
		return nil
	})
	count := func(text string) int { return strings.Count(log.String(), text) }
	require.Eventually(t, func() bool {
		return requests.Load() > 15 && count("failed to rotate") > 0 && count("failed to watch") > 1
	}, waitTime, 10*time.Millisecond)
	cancel()
	require.NoError(t, failing.Close())
	require.ErrorIs(t, g.Wait(), http.ErrServerClosed)
	require.ErrorContains(t, r.Ready(), "is not loaded yet")
	require.Equal(t, 1, count("failed to rotate the serving certificate"), log.String())
	require.Equal(t, 2, count("failed to watch for changes"), log.String())
}
