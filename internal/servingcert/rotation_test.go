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

// world is a cluster in which time passes quickly: a Secret, a configuration with two webhooks, and API servers that
// may trust any bundle that was live within the time to settle.
type world struct {
	now      time.Time
	secret   map[string][]byte
	version  int
	webhooks [][]byte
	changed  int
	lives    []life
	// rescued is when an authority that was made for want of one came into the bundle; rescue is its number until then.
	rescued time.Time
	rescue  string
}

// life is a bundle and when it was replaced.
type life struct {
	bundle []*x509.Certificate
	end    time.Time
}

type replica struct {
	served *tls.Certificate
	first  time.Time // when it began to serve
	trust  trust
	ready  bool
	// begun is a step that was decided and is not written yet, with the versions it was decided from.
	begun            step
	look             look
	version, changed int
}

// see is the first half of once: look, adopt, decide.
func (r *replica) see(w *world, t terms) {
	r.look = look{now: w.now, webhooks: w.webhooks, served: r.served}
	r.look.content = read(w.secret, r.look.anywhere())
	r.trust = r.trust.seen(r.look)
	r.look.trustedSince = r.trust.since
	r.served = serve(r.look, t)
	if r.look.served == nil && r.served != nil {
		r.first = w.now
	}
	r.ready = trouble(r.look, r.served) == ""
	r.begun, r.version, r.changed = decide(r.look, t).step, w.version, w.changed
}

// write is the second half: the write, unless somebody else was faster.
func (r *replica) write(test *testing.T, w *world, t terms) {
	s := r.begun
	r.begun = idle
	if s == writeBundle && r.changed == w.changed {
		w.lives = append(w.lives, life{bundle: r.look.bundle(), end: w.now})
		want := r.look.content.bundle()
		if w.rescue != "" && r.look.content.ca.cert.SerialNumber.String() == w.rescue {
			w.rescued, w.rescue = w.now, ""
		}
		w.webhooks, w.changed = [][]byte{want, want}, w.changed+1
	}
	if s == idle || s == writeBundle || r.version != w.version {
		return
	}
	if s == makeAuthority && r.look.content.ca == nil {
		w.rescued, w.rescue = w.now, "next"
	}
	next, err := advance(r.look, s, t)
	require.NoError(test, err)
	if w.rescue == "next" {
		w.rescue = next.ca.cert.SerialNumber.String()
	}
	w.secret, err = next.data()
	require.NoError(test, err)
	w.version++
}

// TestNoCallFailsWhateverTheOrder lets three replicas look and write in random order, restart, and lose the Secret, for
// years, and asks at every moment whether each API server trusts what each ready replica serves.
func TestNoCallFailsWhateverTheOrder(t *testing.T) {
	terms := terms{ca: 40 * 24 * time.Hour, leaf: 9 * 24 * time.Hour, settle: time.Hour, names: names("w", "n")}
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			w := &world{now: epoch(), webhooks: [][]byte{nil, nil}}
			replicas := []*replica{}
			for range 3 {
				replicas = append(replicas, &replica{begun: idle})
			}
			calls, authorities := 0, map[string]bool{}
			for range 800 {
				r := replicas[random.IntN(len(replicas))]
				switch n := random.IntN(100); {
				case n < 50:
					r.see(w, terms)
				case n < 85:
					r.write(t, w, terms)
				case n < 87:
					*r = replica{begun: idle}
				case n == 87 && random.IntN(4) == 0:
					w.secret, w.version = nil, w.version+1
				case n < 92:
					w.now = w.now.Add(time.Duration(random.Int64N(int64(10 * time.Minute))))
				default:
					w.now = w.now.Add(time.Duration(random.Int64N(int64(48 * time.Hour))))
					for _, each := range replicas { // nobody is away for two days
						each.write(t, w, terms)
						each.see(w, terms)
					}
				}
				calls += check(t, w, replicas, terms)
				if ca := read(w.secret, nil).ca; ca != nil {
					authorities[ca.cert.SerialNumber.String()] = true
				}
			}
			require.Greater(t, calls, 500)
			require.Greater(t, len(authorities), 1, "the authority was never rotated")
		})
	}
}

// check makes every API server call every ready replica, and returns the number of calls.
func check(t *testing.T, w *world, replicas []*replica, terms terms) int {
	t.Helper()
	views := [][]*x509.Certificate{look{webhooks: w.webhooks}.bundle()}
	for _, l := range w.lives {
		if w.now.Before(l.end.Add(terms.settle)) {
			views = append(views, l.bundle)
		}
	}
	calls := 0
	for i, r := range replicas {
		// Only a replica that began with nothing after the Secret was lost (or before there was one) has no choice but to
		// serve what an API server may not know yet.
		if !r.ready || ((w.rescue != "" || w.now.Before(w.rescued.Add(2*terms.settle))) && !r.first.Before(w.rescued)) {
			continue
		}
		for _, view := range views {
			calls++
			require.True(t, trustedBy(r.served, view), "replica %d serves what an API server does not trust", i)
		}
	}
	return calls
}
