package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/testlog"
)

const serviceHost = "holdfast-webhook.holdfast-system.svc"

// filesFixture runs a Source on a directory that looks like a mounted Secret.
type filesFixture struct {
	*Source
	t        *testing.T
	ca       *pki.CA
	dir      string
	mounts   int
	log      testlog.Buffer
	registry *prometheus.Registry
}

func newFilesFixture(t *testing.T) *filesFixture {
	t.Helper()
	f := &filesFixture{t: t, dir: t.TempDir(), registry: prometheus.NewRegistry()}
	var err error
	f.ca, err = pki.NewCA("example")
	require.NoError(t, err)
	f.Source = New(Options{
		CertFile: filepath.Join(f.dir, "tls.crt"), KeyFile: filepath.Join(f.dir, "tls.key"),
		Service: serviceName, Namespace: "holdfast-system", Registerer: f.registry,
		Log: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	return f
}

// start runs the Source until the test ends.
func (f *filesFixture) start() {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		require.ErrorIs(f.t, <-ended, context.Canceled)
	})
}

func (f *filesFixture) issue(o pki.CertOptions) pki.Pair {
	f.t.Helper()
	o.Server = true
	if o.Hosts == nil {
		o.Hosts = []string{serviceHost}
	}
	pair, err := f.ca.Issue(o)
	require.NoError(f.t, err)
	return pair
}

// mount replaces the files as the kubelet does: a link to a directory is renamed.
func (f *filesFixture) mount(p pki.Pair) {
	f.t.Helper()
	f.mounts++
	version := filepath.Join(f.dir, "..version"+string(rune('a'+f.mounts)))
	require.NoError(f.t, p.Write(filepath.Join(version, "tls.crt"), filepath.Join(version, "tls.key")))
	require.NoError(f.t, os.Symlink(filepath.Base(version), filepath.Join(f.dir, "..data_tmp")))
	before, err := os.Readlink(filepath.Join(f.dir, "..data"))
	require.NoError(f.t, os.Rename(filepath.Join(f.dir, "..data_tmp"), filepath.Join(f.dir, "..data")))
	if err == nil {
		require.NoError(f.t, os.RemoveAll(filepath.Join(f.dir, before)))
		return
	}
	for _, name := range []string{"tls.crt", "tls.key"} {
		require.NoError(f.t, os.Symlink("..data/"+name, filepath.Join(f.dir, name)))
	}
}

// serves reports whether the certificate of the pair is served.
func (f *filesFixture) serves(p pki.Pair) bool {
	want, err := p.TLS()
	require.NoError(f.t, err)
	got, err := f.GetCertificate(&tls.ClientHelloInfo{})
	return err == nil && bytes.Equal(got.Certificate[0], want.Certificate[0])
}

func (f *filesFixture) eventually(what string, is func() bool) {
	f.t.Helper()
	require.Eventually(f.t, is, waitTime, 10*time.Millisecond, what)
}

func (f *filesFixture) expiry() float64 {
	f.t.Helper()
	families, err := f.registry.Gather()
	require.NoError(f.t, err)
	require.Len(f.t, families, 1)
	return families[0].GetMetric()[0].GetGauge().GetValue()
}

func TestFiles(t *testing.T) {
	f := newFilesFixture(t)
	f.start()
	f.eventually("waits for the files", func() bool {
		return strings.Contains(f.log.String(), "failed to load the serving certificate; retrying")
	})
	require.ErrorContains(t, f.Ready(), f.dir+"/tls.crt: no such file or directory")
	_, err := f.GetCertificate(nil)
	require.Error(t, err)
	require.Zero(t, f.expiry())

	until := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	first := f.issue(pki.CertOptions{NotAfter: until})
	f.mount(first)
	f.eventually("loaded", func() bool { return f.serves(first) })
	<-f.Loaded()
	require.NoError(t, f.Ready())
	require.InDelta(t, until.Unix(), f.expiry(), 0)

	second := f.issue(pki.CertOptions{})
	f.mount(second)
	f.eventually("replaced", func() bool { return f.serves(second) })
	require.Greater(t, f.expiry(), float64(until.Unix()))

	third := f.issue(pki.CertOptions{})
	f.mount(pki.Pair{Cert: third.Cert, Key: second.Key})
	f.eventually("reads the mismatch", func() bool {
		return strings.Contains(f.log.String(), "private key does not match public key")
	})
	require.True(t, f.serves(second))
	require.NoError(t, f.Ready(), "the previous certificate is still served")
	f.mount(third)
	f.eventually("replaced after a mismatch", func() bool { return f.serves(third) })

	for reason, unusable := range map[string]pki.CertOptions{
		"is not valid before":             {NotBefore: time.Now().Add(time.Hour)},
		"expired on":                      {NotAfter: time.Now().Add(-time.Minute)},
		"is not valid for " + serviceHost: {Hosts: []string{"webhook.example"}},
	} {
		f.mount(f.issue(unusable))
		f.eventually(reason, func() bool { return strings.Contains(f.log.String(), reason) || !f.serves(third) })
		require.True(t, f.serves(third), reason)
		require.NoError(t, f.Ready(), reason)
	}
	fourth := f.issue(pki.CertOptions{})
	f.mount(fourth)
	f.eventually("replaced after those", func() bool { return f.serves(fourth) })
}

func TestFilesAreUnusable(t *testing.T) {
	other, err := pki.NewCA("other")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		pair  func(*filesFixture) pki.Pair
		ready string
	}{
		"mismatch": {func(f *filesFixture) pki.Pair {
			return pki.Pair{Cert: f.issue(pki.CertOptions{}).Cert, Key: other.Pair().Key}
		}, "private key does not match public key"},
		"not PEM": {func(f *filesFixture) pki.Pair {
			return pki.Pair{Cert: []byte("x"), Key: f.issue(pki.CertOptions{}).Key}
		}, "failed to find any PEM data in certificate input"},
		"another name": {func(f *filesFixture) pki.Pair {
			return f.issue(pki.CertOptions{Hosts: []string{"webhook.example"}})
		}, "is not valid for " + serviceHost},
		"expired": {func(f *filesFixture) pki.Pair {
			return f.issue(pki.CertOptions{NotAfter: time.Now().Add(-time.Minute)})
		}, "expired on"},
		"not valid yet": {func(f *filesFixture) pki.Pair {
			return f.issue(pki.CertOptions{NotBefore: time.Now().Add(time.Hour)})
		}, "is not valid before"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFilesFixture(t)
			f.mount(c.pair(f))
			f.start()
			f.eventually("not ready", func() bool {
				err := f.Ready()
				return err != nil && strings.Contains(err.Error(), c.ready)
			})
			good := f.issue(pki.CertOptions{})
			f.mount(good)
			f.eventually("ready", func() bool { return f.Ready() == nil && f.serves(good) })
		})
	}
}
