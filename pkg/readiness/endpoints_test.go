package readiness

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestLabelGate(t *testing.T) {
	storage := map[string]string{"role": "storage"}
	for _, c := range []struct {
		name, gate, missing string
		labels              map[string]string
	}{
		{"not set", "role=worker", "label role=worker of the node, which is not set", nil},
		{"another value", "role=worker", "label role=worker of the node: it is role=storage", storage},
		{"the value", "role=worker", "", map[string]string{"role": "worker"}},
		{"the key", "role", "", storage},
		{"no key", "role", "label role of the node, which is not set", map[string]string{"roles": ""}},
		{"the empty value", "role=", "", map[string]string{"role": ""}},
		{"not the empty value", "role=", "it is role=storage", storage},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(recorded(Held, thisBoot, NewNode), cordoned)
			n.Labels = c.labels
			d := Decide(n, readyFacts(), Policy{Force: []string{GateLabel + c.gate}}, noon())
			requireGate(t, d, GateLabel+c.gate, WaitingForLabel, c.missing)
			require.False(t, d.NeedsProbes)
		})
	}
}

const cilium, bird = "http:127.0.0.1:9879/healthz", "tcp::179"

// probed are the facts of a host with everything but the answers of these probes.
func probed(probes ...Probe) Facts {
	return readyFactsWith(func(f *Facts) { f.Probes = probes })
}

func TestEndpointGate(t *testing.T) {
	refused := Probe{Gate: cilium, Answer: Absent, Problem: "connection refused", Since: noon()}
	for _, c := range []struct {
		name, gate, missing string
		probe               Probe
	}{
		{"another gate", cilium, "to answer with a 2xx status, which was not probed yet", Probe{Gate: bird, Answer: Present}},
		{"not probed", cilium, "which was not probed yet", Probe{Gate: cilium}},
		{"failed", cilium, cilium + " to answer with a 2xx status: connection refused, since 2026-08-01T12:00:00Z", refused},
		{"answered", cilium, "", Probe{Gate: cilium, Answer: Present}},
		{"not connected", bird, bird + " to accept connections, which was not probed yet", Probe{}},
		{"connected", bird, "", Probe{Gate: bird, Answer: Present}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := node(recorded(Held, thisBoot, NewNode), cordoned)
			d := Decide(n, probed(c.probe), Policy{Force: []string{c.gate}}, noon())
			requireGate(t, d, c.gate, WaitingForProbe, c.missing)
			require.True(t, d.NeedsProbes)
			require.False(t, d.AwaitsProbe, "a held node waits as held")
		})
	}
}

// TestNeedsProbes: probes are made only while their results can change the decision.
func TestNeedsProbes(t *testing.T) {
	for name, c := range map[string]struct {
		node  *corev1.Node
		needs bool
	}{
		"held":                   {node(recorded(Held, thisBoot, NewNode), cordoned), true},
		"no record":              {node(), true},
		"released":               {node(recorded(Released, thisBoot, NetworkReady)), false},
		"overridden":             {node(recorded(Overridden, thisBoot, EndedByHand)), false},
		"released, earlier boot": {node(recorded(Released, otherBoot, NetworkReady)), true},
		"gates do not fit":       {node(recorded(Released, thisBoot, GatesMismatch)), true},
		"unreadable record":      {node(annotated(HoldAnnotation, "{")), false},
		"cordoned, earlier boot": {node(recorded(Released, otherBoot, NetworkReady), cordoned), true},
	} {
		t.Run(name, func(t *testing.T) {
			policy := Policy{Force: []string{cilium}}
			require.Equal(t, c.needs, Decide(c.node, readyFacts(), policy, noon()).NeedsProbes)
			require.False(t, Decide(c.node, readyFacts(), Policy{}, noon()).NeedsProbes, "there is no endpoint")
			require.False(t, Decide(c.node, bootlessFacts(), policy, noon()).NeedsProbes)
		})
	}
}

// TestAwaitsProbe: a node that was Ready before Holdfast is neither held nor recorded before the
// first probe of each endpoint.
func TestAwaitsProbe(t *testing.T) {
	n := node(conditioned(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady"))
	policy := Policy{Force: []string{cilium, bird}}
	for name, facts := range map[string]Facts{
		"none probed": readyFacts(),
		"one probed":  probed(Probe{Gate: cilium, Answer: Present}, Probe{Gate: bird}),
		"one failed":  probed(Probe{Gate: cilium, Answer: Absent}, Probe{Gate: bird}),
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(n, facts, policy, noon())
			require.True(t, d.AwaitsProbe)
			require.Nil(t, d.Record)
			require.Nil(t, d.Event)
			require.Equal(t, corev1.ConditionUnknown, d.Conditions[0].Status)
		})
	}
	up, down := Probe{Gate: cilium, Answer: Present}, Probe{Gate: cilium, Answer: Absent, Problem: "refused"}
	d := Decide(n, probed(up, Probe{Gate: bird, Answer: Present}), policy, noon())
	require.False(t, d.AwaitsProbe)
	require.Equal(t, FirstSeen, d.Record.Reason)
	d = Decide(n, probed(down, Probe{Gate: bird, Answer: Present}), policy, noon())
	require.Equal(t, RecordReason(GatesMismatch), d.Record.Reason)
	d = Decide(node(), readyFacts(), policy, noon())
	require.False(t, d.AwaitsProbe, "a node that is not Ready is not judged by its gates")
	require.Equal(t, FirstSeen, d.Record.Reason)
	d = Decide(node(), readyFacts(), Policy{Force: []string{cilium}, HoldUnrecorded: true}, noon())
	require.True(t, d.Held, "a new node is held until the first answer")
}

func TestEndpoints(t *testing.T) {
	policy := Policy{Force: []string{
		"tcp::179", "unit:a.service", "http::9879", "https:[::1]:10250/healthz?verbose=1", "tcp::179",
		"http:cilium:80/a%20b",
	}}
	require.NoError(t, policy.Validate())
	got := [][3]string{}
	for _, e := range policy.Endpoints() {
		target := ""
		if e.URL != nil {
			target = e.URL.String()
		}
		got = append(got, [3]string{e.Gate, e.Address, target})
	}
	require.Equal(t, [][3]string{
		{"http::9879", "127.0.0.1:9879", "http://127.0.0.1:9879/"},
		{"http:cilium:80/a%20b", "cilium:80", "http://cilium:80/a%20b"},
		{"https:[::1]:10250/healthz?verbose=1", "[::1]:10250", "https://[::1]:10250/healthz?verbose=1"},
		{"tcp::179", "127.0.0.1:179", ""},
	}, got)
}

func TestEndpointResult(t *testing.T) {
	e := Endpoint{Gate: bird}
	first := e.Result(Probe{Gate: bird}, errors.New("refused"), noon())
	require.Equal(t, Probe{Gate: bird, Answer: Absent, Problem: "refused", Since: noon()}, first)
	second := e.Result(first, errors.New("no answer"), noon().Add(time.Minute))
	require.Equal(t, Probe{Gate: bird, Answer: Absent, Problem: "no answer", Since: noon()}, second, "since the first")
	require.Equal(t, Probe{Gate: bird, Answer: Present}, e.Result(second, nil, noon().Add(time.Hour)))
}

// FuzzGates: a gate that is accepted can be probed, at the address that it names.
func FuzzGates(f *testing.F) {
	for _, gate := range []string{
		cilium, bird, "https:[::1]:443/x?y#z", "http:a:1//b/../%2e", "tcp:[fe80::1%eth0]:1", "label:a/b=c",
		"condition:A=True", "unit:a.service", "http:a@b:1/", "http:[::ffff:1.2.3.4]:65535/\x00",
	} {
		f.Add(gate)
	}
	f.Fuzz(func(t *testing.T, gate string) {
		policy := Policy{Force: []string{gate}}
		if policy.Validate() != nil {
			return
		}
		for _, e := range policy.Endpoints() {
			host, port, err := net.SplitHostPort(e.Address)
			require.NoError(t, err)
			require.NotEmpty(t, host)
			require.NotEmpty(t, port)
			if strings.HasPrefix(gate, GateTCP) {
				require.Nil(t, e.URL)
				continue
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.URL.String(), http.NoBody)
			require.NoError(t, err)
			require.Equal(t, e.Address, request.URL.Host)
			require.Nil(t, request.URL.User)
		}
		d := Decide(node(recorded(Held, thisBoot, NewNode), cordoned), readyFacts(), policy, noon())
		require.Equal(t, len(policy.Endpoints()) > 0, d.NeedsProbes)
	})
}
