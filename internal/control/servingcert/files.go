package servingcert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"

	"github.com/holdfast-dev/holdfast/internal/shared/loop"
)

// FilesOptions configures Files.
type FilesOptions struct {
	// CertFile is the certificate with its chain, KeyFile its key, both in PEM.
	CertFile, KeyFile string
	// Service is the Service through which the API server calls the webhook, Namespace its
	// namespace. The certificate must be valid for the name of the Service.
	Service, Namespace string
	Log                *slog.Logger
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// Files provides a serving certificate that another program writes to files, for example
// cert-manager to a Secret that is mounted. It writes nothing. That program also keeps the
// caBundle of the webhook configuration.
type Files struct {
	options FilesOptions
	loaded  chan struct{} // closed when there is a certificate

	mu      sync.Mutex // guards watcher and problem
	watcher *certwatcher.CertWatcher
	problem string // why there is no certificate yet
}

// NewFiles returns Files, which load nothing before Run.
func NewFiles(o FilesOptions) (*Files, error) {
	f := &Files{options: o, loaded: make(chan struct{}), problem: "the serving certificate is not loaded yet"}
	return f, registerExpiry(o.Registerer, f.served)
}

// Run loads the files and follows their changes until ctx ends, and returns the cause of that.
// It waits for files that do not exist yet. If changed files cannot be used, it keeps the
// certificate that it has.
func (f *Files) Run(ctx context.Context) error {
	return loop.KeepRunning(ctx, loop.Backoff(100*time.Millisecond, 4*time.Second), f.follow, func(err error) {
		f.options.Log.WarnContext(ctx, "failed to load the serving certificate; retrying", "err", err)
	})
}

func (f *Files) follow(ctx context.Context) error {
	watcher, err := certwatcher.New(f.options.CertFile, f.options.KeyFile)
	if err != nil {
		err = fmt.Errorf("loading the serving certificate %s with the key %s: %w", f.options.CertFile, f.options.KeyFile, err)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.problem = err.Error()
		return err
	}
	watcher.RegisterCallback(func(certificate tls.Certificate) {
		f.options.Log.InfoContext(ctx, "serving a new certificate",
			"serial", certificate.Leaf.SerialNumber.Text(16), "not_after", certificate.Leaf.NotAfter)
	})
	f.mu.Lock()
	isFirst := f.watcher == nil
	f.watcher = watcher
	f.mu.Unlock()
	if isFirst {
		close(f.loaded)
	}
	return watcher.Start(ctx)
}

// GetCertificate returns the serving certificate. It has the signature that tls.Config requires.
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watcher == nil {
		return nil, errors.New(f.problem)
	}
	return f.watcher.GetCertificate(hello)
}

// Loaded returns a channel that is closed when GetCertificate returns a certificate. Before that,
// every TLS handshake fails.
func (f *Files) Loaded() <-chan struct{} { return f.loaded }

// Ready returns an error with the reason if calls by the API server fail. It does not know
// whether the API server trusts the certificate.
func (f *Files) Ready() error {
	certificate, err := f.GetCertificate(nil)
	if err != nil {
		return err
	}
	name := f.options.Service + "." + f.options.Namespace + ".svc"
	if reason := invalidReason(certificate.Leaf, time.Now()); reason != "" {
		return errors.New(reason)
	}
	if certificate.Leaf.VerifyHostname(name) != nil {
		return fmt.Errorf("the serving certificate %s is not valid for %s, the name that the API server calls; "+
			"add this DNS name to the certificate", f.options.CertFile, name)
	}
	return nil
}

// served returns the certificate in use, nil if there is none yet.
func (f *Files) served() *tls.Certificate {
	certificate, err := f.GetCertificate(nil)
	if err != nil {
		return nil
	}
	return certificate
}
