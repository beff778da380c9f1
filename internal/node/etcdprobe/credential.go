package etcdprobe

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/shared/hostfs"
)

// rejectionTimeout is the time that a server has to reject a client certificate.
const rejectionTimeout = 500 * time.Millisecond

// loadedCredential is a credential with the current content of its files.
type loadedCredential struct {
	// config is nil for an endpoint without TLS.
	config *tls.Config
	// files is the content of the files.
	files []byte
	// leaf is the client certificate, nil if there is none.
	leaf *x509.Certificate
}

// loadCredential reads the files of an endpoint's credential. root is the host's. It is called for
// every request, so a renewed client certificate or CA takes effect with the next probe. It parses
// the files only if they differ from the known credential's: that takes most of a request's time.
func loadCredential(root hostfs.Root, e endpoint, known loadedCredential) (loadedCredential, error) {
	if !e.usesTLS() {
		return loadedCredential{}, nil
	}
	c := e.credential
	ca, caErr := readFile(root, "CA", c.CA)
	cert, certErr := readFile(root, "client certificate", c.Cert)
	if c.Cert == "" {
		c.Key = "" // It has no use without the certificate.
	}
	key, keyErr := readFile(root, "client key", c.Key)
	if err := cmp.Or(caErr, certErr, keyErr); err != nil {
		return loadedCredential{}, err
	}
	files := slices.Concat(ca, []byte{0}, cert, key)
	if bytes.Equal(files, known.files) {
		return known, nil
	}
	loaded := loadedCredential{
		config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: hostname(e.url)}, files: files,
	}
	if c.CA != "" {
		loaded.config.RootCAs = x509.NewCertPool()
		if !loaded.config.RootCAs.AppendCertsFromPEM(ca) {
			return loadedCredential{}, fmt.Errorf("reading the CA: no certificate in %s", c.CA)
		}
	}
	if c.Cert == "" {
		return loaded, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return loadedCredential{}, fmt.Errorf("reading the client certificate %s: %w", c.Cert, err)
	}
	// tls.Config.Certificates would silently send no certificate if the server's list of
	// accepted CAs lacks the issuer. GetClientCertificate always sends it, so the server
	// responds with the reason for its rejection.
	loaded.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	loaded.leaf = pair.Leaf // GODEBUG=x509keypairleaf=0 leaves it out.
	return loaded, nil
}

// readFile returns the content of a file of a credential, if there is one. root is the host's.
func readFile(root hostfs.Root, what, agentPath string) ([]byte, error) {
	if agentPath == "" {
		return nil, nil
	}
	root, name := root.Split(agentPath)
	data, err := root.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the %s: %w", what, err)
	}
	return data, nil
}

// tlsRejection returns the TLS alert with which the server rejects the client certificate, or
// the error of the failed request if there is no alert. In TLS 1.3 the client may send data
// before the server has verified the certificate, so gRPC sees either the alert or a broken
// connection. A client that only reads always sees the alert.
func tlsRejection(ctx context.Context, e endpoint, credential loadedCredential, requestErr error) error {
	if credential.config == nil || status.Code(requestErr) != codes.Unavailable || !isConnectionLost(requestErr) {
		return requestErr
	}
	u, err := url.Parse(e.url)
	if err != nil {
		return requestErr
	}
	ctx, cancel := context.WithTimeout(ctx, rejectionTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: credential.config}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return requestErr
	}
	defer func() { _ = conn.Close() }() // read-only
	deadline, _ := ctx.Deadline()
	if err = conn.SetReadDeadline(deadline); err != nil {
		return requestErr
	}
	if _, err = conn.Read(make([]byte, 1)); err != nil && strings.Contains(err.Error(), "tls: ") {
		return errors.New(simplifyMessage(err.Error()))
	}
	return requestErr
}

// isConnectionLost reports whether the server closed the connection without a response.
func isConnectionLost(err error) bool {
	message := err.Error()
	return strings.Contains(message, "broken pipe") || strings.Contains(message, "connection reset") ||
		strings.Contains(message, "EOF")
}

// warning describes why the client certificate is not valid now, empty if it is valid.
func (c loadedCredential) warning() string {
	switch now := time.Now(); {
	case c.leaf == nil:
	case now.After(c.leaf.NotAfter):
		return "the client certificate expired on " + c.leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(c.leaf.NotBefore):
		return "the client certificate is not valid before " + c.leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return ""
}
