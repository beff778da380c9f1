package servingcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// backdate is the time by which a CA's validity starts in the past, for API servers and replicas
// with a slow clock.
const backdate = time.Hour

// An authority is a CA with its key.
type authority struct{ *tls.Certificate }

func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	ca, err := newCertificate(&x509.Certificate{
		// The name is unique, so that a verifier can tell two CAs apart.
		Subject:   pkix.Name{CommonName: "holdfast webhook CA " + rand.Text()},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(validity),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, nil)
	return &authority{ca}, err
}

// issue returns a new serving certificate. It is valid as soon as the CA is, so that a replica
// whose clock is ahead serves one that the API server accepts. It expires no later than the CA.
func (a *authority) issue(now time.Time, validity time.Duration, name string) (*tls.Certificate, error) {
	return newCertificate(&x509.Certificate{
		Subject:   pkix.Name{CommonName: "holdfast webhook"},
		NotBefore: a.Leaf.NotBefore, NotAfter: a.endOfLeaf(now, validity), DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, a)
}

// newCertificate returns a certificate with a new key, which a nil issuer signs itself.
func newCertificate(template *x509.Certificate, issuer *authority) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating a key: %w", err)
	}
	parent, signer := template, crypto.PrivateKey(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// endOfLeaf returns when a serving certificate expires that is issued now.
func (a *authority) endOfLeaf(now time.Time, validity time.Duration) time.Time {
	if end := now.Add(validity); end.Before(a.Leaf.NotAfter) {
		return end
	}
	return a.Leaf.NotAfter
}

func (a *authority) hasIssued(serving *tls.Certificate) bool {
	return serving != nil && serving.Leaf.CheckSignatureFrom(a.Leaf) == nil
}

func (a *authority) createdAt() time.Time { return a.Leaf.NotBefore.Add(backdate) }

// authorities is the content of the Secret.
type authorities struct {
	// current signs the serving certificates, nil if it is missing or unusable.
	current *authority
	// next takes its place as soon as every API server trusts it, nil outside of a rotation.
	next *authority
	// problem describes the unusable entries.
	problem error
}

// The entries of the Secret, without the suffixes .crt and .key.
const (
	currentEntry = "ca"
	nextEntry    = "next-ca"
)

// parseSecret parses the Secret's data. Unusable authorities will be replaced, and other entries
// stay.
func parseSecret(data map[string][]byte) authorities {
	current, currentErr := parseAuthority(data, currentEntry)
	next, nextErr := parseAuthority(data, nextEntry)
	return authorities{current: current, next: next, problem: errors.Join(currentErr, nextErr)}
}

// parseAuthority returns nil if both entries are missing.
func parseAuthority(data map[string][]byte, entry string) (*authority, error) {
	cert, key := data[entry+".crt"], data[entry+".key"]
	if len(cert)+len(key) == 0 {
		return nil, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s.crt and %s.key: %w", entry, entry, err)
	case !pair.Leaf.IsCA:
		return nil, fmt.Errorf("%s.crt is not a CA certificate", entry)
	}
	return &authority{&pair}, nil
}

func (a authorities) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	for entry, ca := range map[string]*authority{currentEntry: a.current, nextEntry: a.next} {
		if ca == nil {
			continue
		}
		key, err := x509.MarshalPKCS8PrivateKey(ca.PrivateKey)
		if err != nil {
			return nil, fmt.Errorf("encoding %s.key: %w", entry, err)
		}
		data[entry+".crt"] = encodeCerts(ca.Leaf)
		data[entry+".key"] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
	}
	return data, nil
}

func encodeCerts(certs ...*x509.Certificate) (text []byte) {
	for _, c := range certs {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return text
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
