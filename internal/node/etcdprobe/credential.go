package etcdprobe

import (
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
	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

// rejectionTimeout is the time that a server has to reject a client certificate.
const rejectionTimeout = 500 * time.Millisecond

// loadedCredential is a credential with the current content of its files.
type loadedCredential struct {
	// config is nil for an endpoint without TLS.
	config *tls.Config
	// files is the content of the files.
	files []byte
	// warning describes why the client certificate is not valid now, empty if it is valid.
	warning string
	// notAfter is the expiry of the client certificate, zero if there is none.
	notAfter time.Time
}

// loadCredential reads the files of an endpoint's credential. root is the host's. It is called for
// every request, so a renewed client certificate or CA takes effect with the next probe.
func loadCredential(root hostfs.Root, e endpoint) (loadedCredential, error) {
	if !e.usesTLS() {
		return loadedCredential{}, nil
	}
	loaded := loadedCredential{config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: hostname(e.url)}}
	if err := loaded.addCA(root, e.credential.CA); err != nil {
		return loadedCredential{}, err
	}
	if err := loaded.addClientCertificate(root, e.credential); err != nil {
		return loadedCredential{}, err
	}
	return loaded, nil
}

// readFile returns the content of a file of a credential. root is the host's.
func readFile(root hostfs.Root, agentPath string) ([]byte, error) {
	root, name := root.Split(agentPath)
	return root.ReadFile(name)
}

// addCA adds the CA in the file, if there is one.
func (l *loadedCredential) addCA(root hostfs.Root, file string) error {
	if file == "" {
		return nil
	}
	ca, err := readFile(root, file)
	if err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	l.config.RootCAs = x509.NewCertPool()
	if !l.config.RootCAs.AppendCertsFromPEM(ca) {
		return fmt.Errorf("reading the CA: no certificate in %s", file)
	}
	l.files = append(ca, 0)
	return nil
}

// addClientCertificate adds the client certificate with its key, if there is one.
func (l *loadedCredential) addClientCertificate(root hostfs.Root, c evidence.Credential) error {
	if c.Cert == "" {
		return nil
	}
	cert, err := readFile(root, c.Cert)
	if err != nil {
		return fmt.Errorf("reading the client certificate: %w", err)
	}
	key, err := readFile(root, c.Key)
	if err != nil {
		return fmt.Errorf("reading the client key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("reading the client certificate %s: %w", c.Cert, err)
	}
	l.files = slices.Concat(l.files, cert, key)
	// tls.Config.Certificates would silently send no certificate if the server's list of
	// accepted CAs lacks the issuer. GetClientCertificate always sends it, so the server
	// responds with the reason for its rejection.
	l.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	if pair.Leaf != nil { // GODEBUG=x509keypairleaf=0 leaves it out.
		l.warning = validityProblem(pair.Leaf, time.Now())
		l.notAfter = pair.Leaf.NotAfter
	}
	return nil
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

// validityProblem describes why a certificate is not valid at a time, empty if it is valid.
func validityProblem(leaf *x509.Certificate, now time.Time) string {
	switch {
	case now.After(leaf.NotAfter):
		return "the client certificate expired on " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the client certificate is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return ""
}
