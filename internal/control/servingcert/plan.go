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
	stepWait        rotationStep = "wait"
	stepCreateNext  rotationStep = "create the next CA"  // in the Secret
	stepWriteBundle rotationStep = "write the caBundles" // of every webhook
	stepPromoteNext rotationStep = "use the next CA"     // as the current one
)

// maxTrusted limits the CAs in a caBundle, in case the Secret is deleted again and again.
const maxTrusted = 12

// A Policy has the times of a rotation, all above zero.
type Policy struct {
	// CAValidity is the lifetime of a CA.
	CAValidity time.Duration
	// LeafValidity is the lifetime of a serving certificate, at most half of CAValidity. A replica
	// replaces its certificate after a third of it.
	LeafValidity time.Duration
	// Settle is the time between a change of the caBundles and the use of a CA that depends on it,
	// because each API server reads the configuration with its own delay. At most a third of
	// LeafValidity.
	Settle time.Duration
}

// defaultPolicy returns the times of an installation.
func defaultPolicy() Policy {
	const day = 24 * time.Hour
	return Policy{CAValidity: 5 * 365 * day, LeafValidity: 90 * day, Settle: 10 * time.Minute}
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
	case newest.Leaf.Equal(t.ca):
		return t
	}
	return caTrust{ca: newest.Leaf, since: s.now}
}

// allBundles reports whether there are caBundles, and all of them meet a condition.
func (s rotationState) allBundles(meets func([]byte) bool) bool {
	return len(s.caBundles) > 0 && !slices.ContainsFunc(s.caBundles, func(b []byte) bool { return !meets(b) })
}

func (s rotationState) isTrusted(a *authority) bool {
	return s.allBundles(func(b []byte) bool { return slices.ContainsFunc(decodeCerts(b), a.Leaf.Equal) })
}

// isSettled reports whether every API server has had the time to read the caBundles with a CA.
func (s rotationState) isSettled(a *authority, policy Policy) bool {
	return a.Leaf.Equal(s.trust.ca) && !s.now.Before(s.trust.since.Add(policy.Settle))
}

// isAccepted reports whether an API server accepts the served certificate now.
func (s rotationState) isAccepted() bool {
	return s.served != nil && s.allBundles(func(b []byte) bool {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(b)
		_, err := s.served.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.now})
		return err == nil
	})
}

// signerOfNew returns the CA that must issue a new serving certificate now, nil if this replica
// keeps the one that it serves. (A replica that has none does not wait until the CA has settled.)
func (s rotationState) signerOfNew(policy Policy) *authority {
	signer := s.current
	if signer == nil || invalidReason(signer.Leaf, s.now) != "" {
		signer = s.next
	}
	switch {
	case signer == nil || !s.isTrusted(signer):
		return nil
	case s.isAccepted() && !signer.hasIssued(s.served) && !s.isSettled(signer, policy):
		return nil
	case signer.hasIssued(s.served) && invalidReason(s.served.Leaf, s.now) == "":
		// Replace it after a third of its validity, unless the end of the CA limits the new one too.
		gain := signer.endOfLeaf(s.now, policy.LeafValidity).Sub(s.served.Leaf.NotAfter)
		if gain < policy.LeafValidity/3 {
			return nil
		}
	}
	return signer
}

// planRotation returns the next step and its reason. The order of the steps ensures that no call
// fails: a CA has been in all caBundles for the settle time before it becomes the current one.
func planRotation(s rotationState, policy Policy) (rotationStep, string) {
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
func nextCAReason(s rotationState, policy Policy) string {
	switch ca := cmp.Or(s.next, s.current); {
	case ca == nil && s.problem != nil:
		return "the Secret is unusable: " + s.problem.Error()
	case ca == nil:
		return "the Secret has no CA"
	case s.now.Before(ca.Leaf.NotBefore):
		return "the CA is not valid before " + ca.Leaf.NotBefore.Format(time.RFC3339)
	case ca == s.next && !s.now.Before(ca.createdAt().Add(policy.LeafValidity)):
		return "the next CA could not be used for " + policy.LeafValidity.String()
	case !s.now.Before(ca.Leaf.NotAfter.Add(-policy.CAValidity / 3)):
		return fmt.Sprintf("the CA expires on %s", ca.Leaf.NotAfter.Format(time.RFC3339))
	}
	return ""
}

// wantedBundle returns the caBundle for the webhooks, with the newest CA first. It contains every
// CA that may have signed a served certificate: those of the Secret, and those that are trusted
// now and may still be in use.
func wantedBundle(s rotationState, policy Policy) []byte {
	var trusted []*x509.Certificate
	for _, a := range []*authority{s.next, s.current} {
		if a != nil {
			trusted = append(trusted, a.Leaf)
		}
	}
	others := decodeCerts(bytes.Join(s.caBundles, []byte("\n")))
	slices.SortStableFunc(others, func(a, b *x509.Certificate) int { return b.NotBefore.Compare(a.NotBefore) })
	for _, ca := range others {
		if !s.isUnused(ca, policy) && !slices.ContainsFunc(trusted, ca.Equal) && len(trusted) < maxTrusted {
			trusted = append(trusted, ca)
		}
	}
	return encodeCerts(trusted...)
}

// isUnused reports whether no valid certificate of a CA can be served. All certificates are expired
// that were issued before the current CA was used, which is within a LeafValidity of its creation
// (nextCAReason). A CA that is newer than the current one may be in use: the Secret is a backup.
func (s rotationState) isUnused(ca *x509.Certificate, policy Policy) bool {
	isReplaced := s.current != nil && s.current.Leaf.NotBefore.After(ca.NotBefore) &&
		!s.now.Before(s.current.createdAt().Add(policy.Settle+2*policy.LeafValidity))
	return isReplaced || !ca.IsCA || !s.now.Before(ca.NotAfter)
}

// unreadyReason returns why calls by an API server fail, empty if they succeed.
func unreadyReason(s rotationState) string {
	switch {
	case len(s.caBundles) == 0:
		return "no webhook is configured"
	case s.served == nil:
		return "no serving certificate exists yet"
	}
	if reason := invalidReason(s.served.Leaf, s.now); reason != "" || s.isAccepted() {
		return reason
	}
	return "the webhook configuration does not trust the serving certificate"
}
