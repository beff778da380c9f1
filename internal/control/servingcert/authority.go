package servingcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// backdate is the time by which a CA's validity starts in the past, for API servers and replicas
// with a slow clock.
const backdate = time.Hour

// An authority is a CA with its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority returns a new self-signed CA.
func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	key, template, err := newTemplate(now.Add(-backdate), now.Add(validity))
	if err != nil {
		return nil, err
	}
	// The serial number makes the subject unique, so that a verifier can tell two CAs apart.
	template.Subject = pkix.Name{CommonName: fmt.Sprintf("holdfast webhook CA %x", template.SerialNumber)}
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid, template.IsCA, template.MaxPathLenZero = true, true, true
	cert, err := signCert(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("signing the CA certificate: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

// issue returns a new serving certificate. It is valid as soon as the CA is, so that a replica
// whose clock is ahead serves one that the API server accepts. It expires no later than the CA.
func (a *authority) issue(now time.Time, validity time.Duration, names []string) (*tls.Certificate, error) {
	key, template, err := newTemplate(a.cert.NotBefore, a.endOfLeaf(now, validity))
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "holdfast webhook"}
	template.DNSNames = names
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.BasicConstraintsValid = true
	leaf, err := signCert(template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

// endOfLeaf returns when a serving certificate expires that is issued now.
func (a *authority) endOfLeaf(now time.Time, validity time.Duration) time.Time {
	if end := now.Add(validity); end.Before(a.cert.NotAfter) {
		return end
	}
	return a.cert.NotAfter
}

// hasIssued reports whether the CA has signed a serving certificate.
func (a *authority) hasIssued(serving *tls.Certificate) bool {
	return serving != nil && serving.Leaf.CheckSignatureFrom(a.cert) == nil
}

// createdAt returns when the CA was created.
func (a *authority) createdAt() time.Time { return a.cert.NotBefore.Add(backdate) }

// isValid reports whether a certificate is neither expired nor from a clock that is far ahead.
func isValid(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && now.Before(c.NotAfter)
}

func newTemplate(begin, end time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generating a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("generating a serial number: %w", err)
	}
	return key, &x509.Certificate{SerialNumber: serial, NotBefore: begin, NotAfter: end}, nil
}

func signCert(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// The entries of the Secret.
const (
	caCertEntry     = "ca.crt"
	caKeyEntry      = "ca.key"
	nextCACertEntry = "next-ca.crt"
	nextCAKeyEntry  = "next-ca.key"
)

// authorities is the content of the Secret.
type authorities struct {
	// current signs the serving certificates, nil if it is missing or unusable.
	current *authority
	// next takes its place as soon as every API server trusts it, nil outside of a rotation.
	next *authority
	// problem describes the unusable entries.
	problem error
}

// parseSecret parses the Secret's data. Unusable entries will be replaced. It ignores other
// entries, such as the serving certificate that earlier versions kept in the Secret.
func parseSecret(data map[string][]byte) authorities {
	current, currentErr := parseAuthority(data, caCertEntry, caKeyEntry)
	next, nextErr := parseAuthority(data, nextCACertEntry, nextCAKeyEntry)
	return authorities{current: current, next: next, problem: errors.Join(currentErr, nextErr)}
}

// parseAuthority returns nil if both entries are missing.
func parseAuthority(data map[string][]byte, certEntry, keyEntry string) (*authority, error) {
	if len(data[certEntry])+len(data[keyEntry]) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(data[certEntry], data[keyEntry])
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certEntry, keyEntry, err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certEntry, err)
	}
	key, isECDSA := pair.PrivateKey.(*ecdsa.PrivateKey)
	switch {
	case !isECDSA:
		return nil, fmt.Errorf("%s is not an ECDSA key", keyEntry)
	case !cert.IsCA:
		return nil, fmt.Errorf("%s is not a CA certificate", certEntry)
	}
	return &authority{cert: cert, key: key}, nil
}

// encode returns the Secret's data.
func (a authorities) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	return data, errors.Join(a.current.encodeTo(data, caCertEntry, caKeyEntry),
		a.next.encodeTo(data, nextCACertEntry, nextCAKeyEntry))
}

// encodeTo writes the entries of an authority, nothing if it is nil.
func (a *authority) encodeTo(data map[string][]byte, certEntry, keyEntry string) error {
	if a == nil {
		return nil
	}
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", keyEntry, err)
	}
	data[certEntry] = encodeCert(a.cert)
	data[keyEntry] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	return nil
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// decodeCerts returns the certificates of a PEM text. It skips invalid blocks, so that a
// damaged block does not remove the trust in the other CAs.
func decodeCerts(text []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			certs = append(certs, c)
		}
	}
	return certs
}
