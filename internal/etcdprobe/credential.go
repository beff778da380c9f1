package etcdprobe

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-dev/holdfast/internal/smallfile"
)

// verdictWait is how long a server may take to reject a certificate: it only has to look at it.
const verdictWait = 500 * time.Millisecond

// fingerprint stands for the content of a credential's files.
type fingerprint [sha256.Size]byte

// loaded is a credential as its files are now.
type loaded struct {
	// config is nil for a plain target.
	config *tls.Config
	print  fingerprint
	// warning is what a look at the certificate alone shows to be wrong with it, empty if nothing.
	warning string
	// notAfter is until when the client's certificate is valid, zero if there is none.
	notAfter time.Time
}

// load reads the files of a target's credential. They are read for every question, so a renewed certificate counts from
// the next look on, the authority's as well.
func load(t target) (loaded, error) {
	if !t.secure() {
		return loaded{}, nil
	}
	u, err := url.Parse(t.url)
	if err != nil {
		return loaded{}, fmt.Errorf("parsing %q: %w", t.url, err)
	}
	found := loaded{config: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}}
	hash := sha256.New()
	if t.credential.CA != "" {
		var text []byte
		if text, err = smallfile.Read(t.credential.CA); err != nil {
			return loaded{}, fmt.Errorf("reading the CA: %w", err)
		}
		found.config.RootCAs = x509.NewCertPool()
		if !found.config.RootCAs.AppendCertsFromPEM(text) {
			return loaded{}, fmt.Errorf("reading the CA: there is no certificate in %s", t.credential.CA)
		}
		_, _ = hash.Write(text) // a hash never fails
	}
	_, _ = hash.Write([]byte{0})
	if t.credential.Cert == "" {
		found.print = fingerprint(hash.Sum(nil))
		return found, nil
	}
	cert, err := smallfile.Read(t.credential.Cert)
	if err != nil {
		return loaded{}, fmt.Errorf("reading the client certificate: %w", err)
	}
	key, err := smallfile.Read(t.credential.Key)
	if err != nil {
		return loaded{}, fmt.Errorf("reading the client key: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return loaded{}, fmt.Errorf("reading the client certificate %s: %w", t.credential.Cert, err)
	}
	_, _ = hash.Write(cert)
	_, _ = hash.Write(key)
	found.print = fingerprint(hash.Sum(nil))
	// Always this pair, even if the server's list of authorities does not name its issuer: then the server says what it
	// holds against the certificate. Certificates would silently send none.
	found.config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	found.warning = validity(pair.Leaf, time.Now())
	if pair.Leaf != nil {
		found.notAfter = pair.Leaf.NotAfter
	}
	return found, nil
}

// verdict returns what the server holds against the client's certificate, or the error that the question failed with. In
// TLS 1.3 a server judges the certificate when the client has finished its handshake and is sending already, so gRPC sees
// the verdict or a broken pipe, as chance will have it. A client that sends nothing always sees the verdict.
func verdict(ctx context.Context, t target, files loaded, failed error) error {
	if files.config == nil || status.Code(failed) != codes.Unavailable || !broken(failed) {
		return failed
	}
	u, err := url.Parse(t.url)
	if err != nil {
		return failed
	}
	ctx, cancel := context.WithTimeout(ctx, verdictWait)
	defer cancel()
	conn, err := (&tls.Dialer{Config: files.config}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return failed
	}
	defer func() { _ = conn.Close() }() // nothing was sent
	deadline, _ := ctx.Deadline()
	if err = conn.SetReadDeadline(deadline); err != nil {
		return failed
	}
	if _, err = conn.Read(make([]byte, 1)); err != nil && strings.Contains(err.Error(), "tls: ") {
		return errors.New(plain(err.Error()))
	}
	return failed
}

// broken says that a connection ended without a word.
func broken(err error) bool {
	message := err.Error()
	return strings.Contains(message, "broken pipe") || strings.Contains(message, "connection reset") || strings.Contains(message, "EOF")
}

// validity says in words what is wrong with the dates of a certificate.
func validity(leaf *x509.Certificate, now time.Time) string {
	switch {
	case leaf == nil:
		return ""
	case now.After(leaf.NotAfter):
		return "the client certificate expired on " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the client certificate is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	}
	return ""
}
