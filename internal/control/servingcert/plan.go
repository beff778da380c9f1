package servingcert

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// rotationStep is the next step of a rotation. Each step makes at most one write.
type rotationStep string

const (
	// stepWait does nothing.
	stepWait rotationStep = "wait"
	// stepCreateNext writes a new next CA to the Secret.
	stepCreateNext rotationStep = "create the next CA"
	// stepWriteBundle sets the caBundle of every webhook.
	stepWriteBundle rotationStep = "write the caBundles"
	// stepPromoteNext makes the next CA the current one.
	stepPromoteNext rotationStep = "use the next CA"
)

// maxTrusted limits the CAs in a caBundle, in case the Secret is deleted again and again.
const maxTrusted = 12

// rotationPolicy is the part of Options that decisions depend on.
type rotationPolicy struct {
	caValidity, leafValidity, settle time.Duration
}

// rotationState is the input of a decision.
type rotationState struct {
	authorities

	now time.Time
	// caBundles are those of all webhooks, empty if the configuration does not exist.
	caBundles [][]byte
	// served is the certificate that this replica serves, nil if there is none yet.
	served *tls.Certificate
	trust  caTrust
}

// caTrust records since when this replica finds a CA in all caBundles.
type caTrust struct {
	ca    *x509.Certificate
	since time.Time
}

// update returns the record for a new state. It is about the newest CA of the Secret.
func (t caTrust) update(s rotationState) caTrust {
	newest := cmp.Or(s.next, s.current)
	switch {
	case newest == nil || !s.isTrusted(newest):
		return caTrust{}
	case t.ca != nil && t.ca.Equal(newest.cert):
		return t
	}
	return caTrust{ca: newest.cert, since: s.now}
}

// trustedByAll returns the certificates that all caBundles have in common.
func (s rotationState) trustedByAll() []*x509.Certificate {
	if len(s.caBundles) == 0 {
		return nil
	}
	common := decodeCerts(s.caBundles[0])
	for _, b := range s.caBundles[1:] {
		certs := decodeCerts(b)
		common = slices.DeleteFunc(common, func(c *x509.Certificate) bool { return !slices.ContainsFunc(certs, c.Equal) })
	}
	return common
}

// isTrusted reports whether a CA is in all caBundles.
func (s rotationState) isTrusted(a *authority) bool {
	return slices.ContainsFunc(s.trustedByAll(), a.cert.Equal)
}

// isSettled reports whether every API server has had the time to read the caBundles with a CA.
func (s rotationState) isSettled(a *authority, policy rotationPolicy) bool {
	return s.trust.ca != nil && s.trust.ca.Equal(a.cert) && !s.now.Before(s.trust.since.Add(policy.settle))
}

// isAccepted reports whether an API server accepts the served certificate now.
func (s rotationState) isAccepted() bool {
	return s.served != nil && isValid(s.served.Leaf, s.now) &&
		slices.ContainsFunc(s.trustedByAll(), func(ca *x509.Certificate) bool {
			return isValid(ca, s.now) && s.served.Leaf.CheckSignatureFrom(ca) == nil
		})
}

// signerOfNew returns the CA that must issue a new serving certificate now, nil if this replica
// keeps the one that it serves. (A replica that has none does not wait until the CA has settled.)
func (s rotationState) signerOfNew(policy rotationPolicy) *authority {
	signer := s.current
	if signer == nil || !isValid(signer.cert, s.now) {
		signer = s.next
	}
	switch {
	case signer == nil || !s.isTrusted(signer):
		return nil
	case s.isAccepted() && !signer.hasIssued(s.served) && !s.isSettled(signer, policy):
		return nil
	case signer.hasIssued(s.served) && isValid(s.served.Leaf, s.now):
		// Replace it after a third of its validity, unless the end of the CA limits the new one too.
		gain := signer.endOfLeaf(s.now, policy.leafValidity).Sub(s.served.Leaf.NotAfter)
		if gain < policy.leafValidity/3 {
			return nil
		}
	}
	return signer
}

// planRotation returns the next step and its reason. The order of the steps ensures that no call
// fails: a CA has been in all caBundles for the settle time before it becomes the current one.
func planRotation(s rotationState, policy rotationPolicy) (rotationStep, string) {
	if reason := nextCAReason(s, policy); reason != "" {
		return stepCreateNext, reason
	}
	want := wantedBundle(s, policy)
	switch {
	case slices.ContainsFunc(s.caBundles, func(b []byte) bool { return !bytes.Equal(b, want) }):
		return stepWriteBundle, "the caBundle of a webhook differs from the trusted CAs"
	case s.next != nil && s.isSettled(s.next, policy):
		return stepPromoteNext, "every API server has read the caBundles"
	}
	return stepWait, ""
}

// nextCAReason returns why a new next CA is needed, empty if it is not.
func nextCAReason(s rotationState, policy rotationPolicy) string {
	switch ca := cmp.Or(s.next, s.current); {
	case ca == nil && s.problem != nil:
		return "the Secret is unusable: " + s.problem.Error()
	case ca == nil:
		return "the Secret has no CA"
	case s.now.Before(ca.cert.NotBefore):
		return "the CA is not valid before " + ca.cert.NotBefore.Format(time.RFC3339)
	case ca == s.next && !s.now.Before(ca.createdAt().Add(policy.leafValidity)):
		return "the next CA could not be used for " + policy.leafValidity.String()
	case !s.now.Before(ca.cert.NotAfter.Add(-policy.caValidity / 3)):
		return fmt.Sprintf("the CA expires on %s", ca.cert.NotAfter.Format(time.RFC3339))
	}
	return ""
}

// wantedBundle returns the caBundle for the webhooks, with the newest CA first. It contains every
// CA that may have signed a served certificate: those of the Secret, and those that are trusted
// now, until all certificates are expired that were issued before the current CA was used.
// nextCAReason ensures that a CA is used within a leafValidity of its creation.
func wantedBundle(s rotationState, policy rotationPolicy) []byte {
	var trusted []*x509.Certificate
	for _, a := range []*authority{s.next, s.current} {
		if a != nil {
			trusted = append(trusted, a.cert)
		}
	}
	if s.current == nil || s.now.Before(s.current.createdAt().Add(policy.settle+2*policy.leafValidity)) {
		var others []*x509.Certificate
		for _, b := range s.caBundles {
			others = append(others, decodeCerts(b)...)
		}
		slices.SortStableFunc(others, func(a, b *x509.Certificate) int { return b.NotBefore.Compare(a.NotBefore) })
		for _, ca := range others {
			isUsable := ca.IsCA && s.now.Before(ca.NotAfter) && !slices.ContainsFunc(trusted, ca.Equal)
			if isUsable && len(trusted) < maxTrusted {
				trusted = append(trusted, ca)
			}
		}
	}
	var bundle []byte
	for _, ca := range trusted {
		bundle = append(bundle, encodeCert(ca)...)
	}
	return bundle
}

// applyStep returns the content of the Secret after a step that writes it.
func applyStep(s rotationState, step rotationStep, policy rotationPolicy) (authorities, error) {
	if step == stepPromoteNext {
		return authorities{current: s.next}, nil
	}
	next, err := newAuthority(s.now, policy.caValidity)
	return authorities{current: s.current, next: next}, err
}

// unreadyReason returns why calls by an API server fail, empty if they succeed.
func unreadyReason(s rotationState) string {
	switch {
	case len(s.caBundles) == 0:
		return "no webhook is configured"
	case s.served == nil:
		return "no serving certificate exists yet"
	case isValid(s.served.Leaf, s.now) && !s.isAccepted():
		return "the webhook configuration does not trust the serving certificate"
	}
	return invalidReason(s.served.Leaf, s.now)
}

// invalidReason returns why no client accepts a certificate at this time, empty if there is no
// reason.
func invalidReason(leaf *x509.Certificate, now time.Time) string {
	switch {
	case !now.Before(leaf.NotAfter):
		return "the serving certificate expired on " + leaf.NotAfter.Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the serving certificate is not valid before " + leaf.NotBefore.Format(time.RFC3339)
	}
	return ""
}
