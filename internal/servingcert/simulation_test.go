package servingcert

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// simCluster simulates a Secret, a configuration with two webhooks, and API servers that may
// use any caBundle that was current within the settle time.
type simCluster struct {
	now           time.Time
	policy        rotationPolicy
	secret        map[string][]byte
	secretVersion int
	caBundles     [][]byte
	configVersion int
	replaced      []replacedBundle
	// replacementCA is the serial number of a CA that replaces a lost one and is not in the
	// caBundles yet. replacedAt is when the last one was created or added to the caBundles.
	replacementCA string
	replacedAt    time.Time
}

// replacedBundle is a former caBundle and the time of its replacement.
type replacedBundle struct {
	certs []*x509.Certificate
	end   time.Time
}

// simReplica simulates a Rotator. It makes a decision and the write of it in two calls, so that
// other replicas can write in between.
type simReplica struct {
	served       *tls.Certificate
	servingSince time.Time
	trust        caTrust
	ready        bool
	// ahead is how far the clock of the replica is ahead.
	ahead time.Duration
	// pending is the decided step. The fields below are the input of the decision.
	pending                      rotationStep
	state                        rotationState
	secretVersion, configVersion int
}

// decide does what Rotator.reconcile does before its write.
func (r *simReplica) decide(c *simCluster) {
	r.state = rotationState{now: c.now.Add(r.ahead), caBundles: c.caBundles, served: r.served}
	r.state.content = parseSecret(c.secret, r.state.trustedByAny())
	r.trust = r.trust.update(r.state)
	r.state.trustedSince = r.trust.since
	r.served = selectServing(r.state, c.policy)
	if r.state.served == nil && r.served != nil {
		r.servingSince = c.now
	}
	r.ready = unreadyReason(r.state, r.served) == ""
	r.pending = planRotation(r.state, c.policy).step
	r.secretVersion, r.configVersion = c.secretVersion, c.configVersion
}

// write makes the pending step, unless the written object has changed since the decision.
func (r *simReplica) write(t *testing.T, c *simCluster) {
	t.Helper()
	step := r.pending
	r.pending = stepWait
	switch {
	case step == stepWait:
	case step == stepWriteBundle && r.configVersion == c.configVersion:
		c.replaced = append(c.replaced, replacedBundle{certs: r.state.trustedByAll(), end: c.now})
		if c.replacementCA != "" && r.state.content.ca.cert.SerialNumber.String() == c.replacementCA {
			c.replacedAt, c.replacementCA = c.now, ""
		}
		bundle := r.state.content.caBundle()
		c.caBundles, c.configVersion = [][]byte{bundle, bundle}, c.configVersion+1
	case step != stepWriteBundle && r.secretVersion == c.secretVersion:
		next, err := applyStep(r.state, step, c.policy)
		require.NoError(t, err)
		ca := r.state.content.ca
		if step == stepCreateCA && (ca == nil || ca.cert.SerialNumber.String() == c.replacementCA) {
			c.replacedAt, c.replacementCA = c.now, next.ca.cert.SerialNumber.String()
		}
		c.secret, err = next.encode()
		require.NoError(t, err)
		c.secretVersion++
	}
}

// requireCallsSucceed makes every API server call every ready replica, and returns the number
// of calls.
func (c *simCluster) requireCallsSucceed(t *testing.T, replicas []*simReplica) int {
	t.Helper()
	bundles := [][]*x509.Certificate{rotationState{caBundles: c.caBundles}.trustedByAll()}
	for _, b := range c.replaced {
		if c.now.Before(b.end.Add(c.policy.settle)) {
			bundles = append(bundles, b.certs)
		}
	}
	calls := 0
	for i, r := range replicas {
		// A replica that started without a certificate around the replacement of a lost CA can
		// only serve a certificate that an API server may not accept yet.
		isReplacing := c.replacementCA != "" || c.now.Before(c.replacedAt.Add(2*c.policy.settle))
		// Nor can a replica whose clock is wrong know what the others accept.
		if !r.ready || r.ahead > backdate || isReplacing && !r.servingSince.Before(c.replacedAt) {
			continue
		}
		for _, bundle := range bundles {
			calls++
			require.True(t, isTrustedBy(r.served, bundle, c.now), "an API server does not trust replica %d", i)
			require.True(t, isInTime(r.served.Leaf, c.now), "the certificate of replica %d is not valid now", i)
		}
	}
	return calls
}

// TestRandomOrder runs three replicas for years of simulated time. They decide and write in
// random order, restart, and lose the Secret. In half of the runs, the clock of one is behind, and
// that of another far ahead. At any time, each API server must trust the certificate of each ready
// replica.
func TestRandomOrder(t *testing.T) {
	policy := rotationPolicy{
		caValidity: 40 * 24 * time.Hour, leafValidity: 9 * 24 * time.Hour, settle: time.Hour,
		dnsNames: serviceDNSNames("w", "n"),
	}
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			c := &simCluster{now: epoch(), policy: policy, caBundles: [][]byte{nil, nil}}
			replicas := []*simReplica{{pending: stepWait}, {pending: stepWait}, {pending: stepWait}}
			if seed%2 == 1 {
				replicas[1].ahead, replicas[2].ahead = -backdate/2, 2*backdate
			}
			calls, authorities := 0, map[string]bool{}
			for range 800 {
				r := replicas[random.IntN(len(replicas))]
				switch n := random.IntN(100); {
				case n < 50:
					r.decide(c)
				case n < 85:
					r.write(t, c)
				case n < 87:
					*r = simReplica{pending: stepWait, ahead: r.ahead}
				case n == 87 && random.IntN(4) == 0:
					c.secret, c.secretVersion = nil, c.secretVersion+1
				case n < 92:
					c.now = c.now.Add(time.Duration(random.Int64N(int64(10 * time.Minute))))
				default:
					c.now = c.now.Add(time.Duration(random.Int64N(int64(48 * time.Hour))))
					for _, each := range replicas { // no replica is down for two days
						each.write(t, c)
						each.decide(c)
					}
				}
				calls += c.requireCallsSucceed(t, replicas)
				if ca := parseSecret(c.secret, nil).ca; ca != nil {
					authorities[ca.cert.SerialNumber.String()] = true
				}
			}
			require.Greater(t, calls, 500)
			require.Greater(t, len(authorities), 1, "the CA was never rotated")
		})
	}
}
