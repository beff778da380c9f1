package servingcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// backdate is how far in the past a certificate begins, for API servers whose clock runs behind ours.
const backdate = time.Hour

// authority is a certificate authority that we can sign with.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issued says whether the authority signed the pair.
func (a *authority) issued(pair *tls.Certificate) bool {
	return a != nil && pair != nil && pair.Leaf.CheckSignatureFrom(a.cert) == nil
}

// since is when the authority was made.
func (a *authority) since() time.Time { return a.cert.NotBefore.Add(backdate) }

func newAuthority(now time.Time, validity time.Duration) (*authority, error) {
	key, template, err := blank(now, now.Add(validity))
	if err != nil {
		return nil, err
	}
	// The serial number makes the subject unique, so that a verifier with two of our authorities tells them apart.
	template.Subject = pkix.Name{CommonName: fmt.Sprintf("holdfast webhook CA %x", template.SerialNumber)}
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	template.BasicConstraintsValid, template.IsCA, template.MaxPathLenZero = true, true, true
	cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate authority: %w", err)
	}
	return &authority{cert: cert, key: key}, nil
}

// newPair makes a serving certificate for the names, which does not outlive its authority.
func (a *authority) newPair(now time.Time, validity time.Duration, names []string) (*tls.Certificate, error) {
	end := now.Add(validity)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	key, template, err := blank(now, end)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: "holdfast webhook"}
	template.DNSNames = slices.Clone(names)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.BasicConstraintsValid = true
	leaf, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing the serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

func blank(now, end time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("making a serial number: %w", err)
	}
	return key, &x509.Certificate{SerialNumber: serial, NotBefore: now.Add(-backdate), NotAfter: end}, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func encodeKey(key any) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// decodeCerts returns the certificates in the text. What is not one is passed over: a damaged entry must not cost the
// trust in the others.
func decodeCerts(text []byte) []*x509.Certificate {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return certs
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			continue
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			certs = append(certs, c)
		}
	}
}
