package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"
)

// rotationStep is the next step of a rotation. Each step makes at most one write.
type rotationStep int

const (
	// stepWait does nothing until the plan's nextCheck.
	stepWait rotationStep = iota + 1
	// stepCreateCA writes a new CA to the Secret. The serving certificate stays.
	stepCreateCA
	// stepWriteBundle sets the caBundle of every webhook to the Secret's CAs.
	stepWriteBundle
	// stepIssueServing writes a new serving certificate of the current CA to the Secret.
	stepIssueServing
	// stepDropPrevious removes the previous CAs from the Secret, once all certificates that
	// they have signed are expired.
	stepDropPrevious
)

// String returns the step's name for the log.
func (s rotationStep) String() string {
	return [...]string{
		"none", "wait", "create CA", "write caBundles", "issue serving certificate", "drop previous CAs",
	}[s]
}

// rotationPolicy is the part of Options that decisions depend on.
type rotationPolicy struct {
	caValidity, leafValidity, settle time.Duration
	dnsNames                         []string
}

// renewalTime returns when a certificate is replaced: after two thirds of its validity.
func renewalTime(c *x509.Certificate, validity time.Duration) time.Time {
	return c.NotAfter.Add(-validity / 3)
}

// rotationState is the input of a decision.
type rotationState struct {
	now     time.Time
	content secretContent
	// caBundles are those of all webhooks, empty if the configuration does not exist.
	caBundles [][]byte
	// served is the certificate that this replica serves.
	served *tls.Certificate
	// trustedSince is when this replica first found the current CA in all caBundles, zero if
	// one lacks it.
	trustedSince time.Time
}

// trustedByAll returns the certificates that all caBundles have in common.
func (s rotationState) trustedByAll() []*x509.Certificate {
	if len(s.caBundles) == 0 {
		return nil
	}
	common := decodeCerts(s.caBundles[0])
	for _, b := range s.caBundles[1:] {
		certs := decodeCerts(b)
		common = slices.DeleteFunc(common, func(c *x509.Certificate) bool { return !containsCert(certs, c) })
	}
	return common
}

// trustedByAny returns the certificates of all caBundles.
func (s rotationState) trustedByAny() []*x509.Certificate {
	var certs []*x509.Certificate
	for _, b := range s.caBundles {
		certs = append(certs, decodeCerts(b)...)
	}
	return certs
}

// isAccepted reports whether an API server accepts a serving certificate now.
func (s rotationState) isAccepted(serving *tls.Certificate) bool {
	return serving != nil && isInTime(serving.Leaf, s.now) && isTrustedBy(serving, s.trustedByAll(), s.now)
}

// caTrust records since when a CA has been in all caBundles.
type caTrust struct {
	ca    *x509.Certificate
	since time.Time
}

// update returns the record for a new state.
func (t caTrust) update(s rotationState) caTrust {
	ca := s.content.ca
	switch {
	case ca == nil || !containsCert(s.trustedByAll(), ca.cert):
		return caTrust{}
	case t.ca != nil && t.ca.Equal(ca.cert):
		return t
	}
	return caTrust{ca: ca.cert, since: s.now}
}

// rotationPlan is the next step and its reason.
type rotationPlan struct {
	step   rotationStep
	reason string
	// nextCheck is the time of the next decision if no event comes before.
	nextCheck time.Time
}

// planRotation returns the next step. The order of the steps ensures that no call fails: a CA
// is in all caBundles before a certificate of it is served, and stays there until all its
// certificates are expired.
func planRotation(s rotationState, policy rotationPolicy) rotationPlan {
	ca, serving := s.content.ca, s.content.serving
	if reason := caRenewalReason(s, policy); reason != "" {
		return rotationPlan{step: stepCreateCA, reason: reason}
	}
	caRenewal := renewalTime(ca.cert, policy.caValidity)
	if len(s.caBundles) == 0 {
		return rotationPlan{step: stepWait, reason: "no webhook is configured", nextCheck: caRenewal}
	}
	want := s.content.caBundle()
	if slices.ContainsFunc(s.caBundles, func(b []byte) bool { return !bytes.Equal(b, want) }) {
		return rotationPlan{step: stepWriteBundle, reason: "the caBundle of a webhook differs from the CAs in the Secret"}
	}
	reason := servingRenewalReason(s, policy)
	settled := s.trustedSince.Add(policy.settle)
	// Waiting for the API servers to read the caBundles only helps if calls succeed meanwhile.
	mustWait := s.now.Before(settled) && (s.isAccepted(serving) || s.isAccepted(s.served))
	switch {
	case reason != "" && mustWait:
		reason = "waiting until every API server has read the caBundles"
		return rotationPlan{step: stepWait, reason: reason, nextCheck: settled}
	case reason != "":
		return rotationPlan{step: stepIssueServing, reason: reason}
	}
	nextCheck := earliest(caRenewal, renewalTime(serving.Leaf, policy.leafValidity))
	if selectServing(s, policy) != serving {
		nextCheck = earliest(nextCheck, settled)
	}
	if len(s.content.previous) == 0 {
		return rotationPlan{step: stepWait, reason: "no step is due", nextCheck: nextCheck}
	}
	// By then, all serving certificates of the previous CAs are expired.
	end := ca.createdAt().Add(policy.settle + policy.leafValidity)
	if !s.now.Before(end) {
		return rotationPlan{step: stepDropPrevious, reason: "all certificates of the previous CAs have expired"}
	}
	reason = "a served certificate may be from a previous CA"
	return rotationPlan{step: stepWait, reason: reason, nextCheck: earliest(nextCheck, end)}
}

// applyStep returns the Secret's content after a step.
func applyStep(s rotationState, step rotationStep, policy rotationPolicy) (secretContent, error) {
	next := s.content
	switch step {
	case stepCreateCA:
		ca, err := newCA(s.now, policy.caValidity)
		if err != nil {
			return secretContent{}, err
		}
		return next.withNewCA(ca, s.trustedByAny(), s.now), nil
	case stepIssueServing:
		// Keep the names of the last certificate; otherwise two replicas with different flags
		// would replace each other's certificate.
		dnsNames := slices.Clone(policy.dnsNames)
		if next.serving != nil {
			dnsNames = append(dnsNames, next.serving.Leaf.DNSNames...)
		}
		slices.Sort(dnsNames)
		serving, err := next.ca.issueServing(s.now, policy.leafValidity, slices.Compact(dnsNames))
		if err != nil {
			return secretContent{}, err
		}
		next.serving = serving
		return next, nil
	case stepDropPrevious:
		next.previous = nil
		return next, nil
	default:
		return secretContent{}, fmt.Errorf("step %q does not change the Secret", step)
	}
}

// caRenewalReason returns why a new CA is needed, empty if it is not.
func caRenewalReason(s rotationState, policy rotationPolicy) string {
	ca := s.content.ca
	switch {
	case ca == nil && len(s.content.problems) > 0:
		return "the Secret is unusable: " + strings.Join(s.content.problems, "; ")
	case ca == nil:
		return "the Secret has no CA"
	case !s.now.Before(renewalTime(ca.cert, policy.caValidity)):
		return fmt.Sprintf("the CA expires on %s", ca.cert.NotAfter.Format(time.RFC3339))
	case s.now.Before(ca.cert.NotBefore):
		return fmt.Sprintf("the CA is not valid before %s", ca.cert.NotBefore.Format(time.RFC3339))
	}
	return ""
}

// servingRenewalReason returns why a new serving certificate is needed, empty if it is not.
func servingRenewalReason(s rotationState, policy rotationPolicy) string {
	serving := s.content.serving
	switch {
	case serving == nil && len(s.content.problems) > 0:
		return "the Secret's serving certificate is unusable: " + strings.Join(s.content.problems, "; ")
	case serving == nil:
		return "the Secret has no serving certificate"
	case !s.content.ca.hasIssued(serving):
		return "the serving certificate is from a previous CA"
	case !s.now.Before(renewalTime(serving.Leaf, policy.leafValidity)):
		return fmt.Sprintf("the serving certificate expires on %s", serving.Leaf.NotAfter.Format(time.RFC3339))
	case s.now.Before(serving.Leaf.NotBefore):
		return tooEarlyReason(serving)
	}
	for _, name := range policy.dnsNames {
		if !slices.Contains(serving.Leaf.DNSNames, name) {
			return fmt.Sprintf("the serving certificate is not valid for %s", name)
		}
	}
	return ""
}

// selectServing returns the certificate that this replica serves: the Secret's, or the current
// one as long as it is accepted and an API server might not accept the Secret's yet. (A replica
// without any certificate issues one without waiting for the API servers.)
func selectServing(s rotationState, policy rotationPolicy) *tls.Certificate {
	serving := s.content.serving
	isSettled := s.isAccepted(serving) && !s.now.Before(s.trustedSince.Add(policy.settle))
	if serving == nil || (!isSettled && s.isAccepted(s.served)) {
		return s.served
	}
	return serving
}

// unreadyReason returns why calls by an API server fail, empty if they succeed.
func unreadyReason(s rotationState, served *tls.Certificate) string {
	switch {
	case len(s.caBundles) == 0:
		return "no webhook is configured"
	case served == nil:
		return "no serving certificate exists yet"
	case !s.now.Before(served.Leaf.NotAfter):
		return expiredReason(served)
	case s.now.Before(served.Leaf.NotBefore):
		return tooEarlyReason(served)
	case !isTrustedBy(served, s.trustedByAll(), s.now):
		return "the webhook configuration does not trust the serving certificate yet"
	}
	return ""
}

func expiredReason(serving *tls.Certificate) string {
	return "the serving certificate expired on " + serving.Leaf.NotAfter.Format(time.RFC3339)
}

// tooEarlyReason is the reason if another replica, whose clock is ahead, has issued a certificate.
func tooEarlyReason(serving *tls.Certificate) string {
	return "the serving certificate is not valid before " + serving.Leaf.NotBefore.Format(time.RFC3339)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
