package readiness

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// gateKind is a kind of gate whose name consists of a prefix and an argument.
type gateKind struct {
	prefix string
	// form describes the argument, as people write it after the prefix.
	form string
	// problem returns why an argument cannot be used, empty if it can.
	problem func(argument string) string
}

// gateKinds returns the kinds in the order in which their gates are evaluated.
func gateKinds() []gateKind {
	return []gateKind{
		{GateUnit, "NAME.service", unitNameProblem},
		{GateCondition, "TYPE[=STATUS]", conditionProblem},
		{GateLabel, "KEY[=VALUE]", labelProblem},
		{GateHTTP, "HOST:PORT/PATH", urlProblem},
		{GateHTTPS, "HOST:PORT/PATH", urlProblem},
		{GateTCP, "HOST:PORT", addressProblem},
	}
}

func gateProblem(name string) string {
	choices := []string{GateCNI, GateFlannel, GateNetworkPlugin}
	if slices.Contains(choices, name) {
		return ""
	}
	for _, kind := range gateKinds() {
		if argument, is := strings.CutPrefix(name, kind.prefix); is {
			if problem := kind.problem(argument); problem != "" {
				return fmt.Sprintf("gate %q: %s", name, problem)
			}
			return ""
		}
		choices = append(choices, kind.prefix+kind.form)
	}
	return fmt.Sprintf("unknown gate %q; choose from %s", name, strings.Join(choices, ", "))
}

// unitNameProblem rejects patterns as well: a pattern also matches units that do not exist
// yet.
func unitNameProblem(name string) string {
	dot := strings.LastIndexByte(name, '.')
	if dot <= 0 || dot == len(name)-1 || strings.ContainsAny(name, "/*?[] \t\n") {
		return "write the full name of one systemd unit, such as network-plugin.service"
	}
	return ""
}

// conditionProblem rejects the status Unknown as well: it means that nothing is known, which
// never releases a node.
func conditionProblem(argument string) string {
	kind, status, hasStatus := strings.Cut(argument, "=")
	switch {
	case kind == NetworkHeld:
		return "a hold cannot wait for its own condition"
	case len(validation.IsQualifiedName(kind)) > 0:
		return "write the type of one Node condition, such as condition:NetworkUnavailable"
	case hasStatus && status != string(corev1.ConditionTrue) && status != string(corev1.ConditionFalse):
		return "the status must be True or False, such as condition:" + kind + "=True"
	}
	return ""
}

func labelProblem(argument string) string {
	key, value, _ := strings.Cut(argument, "=")
	if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
		return "write label:KEY or label:KEY=VALUE, such as label:example.org/built-by=kubespray: " + problems[0]
	}
	return ""
}

// Endpoint is where a gate http:, https: or tcp: connects.
type Endpoint struct {
	// Gate is the name of the gate, as the operator wrote it.
	Gate string
	// Address is the address to connect to. An IPv6 address is in brackets.
	Address string
	// URL is the target of the GET request, nil for a gate that only connects.
	URL *url.URL
}

// Result returns the result of a probe that ended now. The error is why the probe failed, nil if
// it succeeded.
func (e Endpoint) Result(before Probe, err error, now time.Time) Probe {
	if err == nil {
		return Probe{Gate: e.Gate, Answer: Present}
	}
	result := Probe{Gate: e.Gate, Answer: Absent, Problem: err.Error(), Since: before.Since}
	if result.Since.IsZero() {
		result.Since = now.UTC().Truncate(time.Second)
	}
	return result
}

// Endpoints returns the endpoints that the policy waits for. Facts.Probes must contain them.
// The policy must be valid.
func (p Policy) Endpoints() []Endpoint {
	var found []Endpoint
	for _, prefix := range []string{GateHTTP, GateHTTPS, GateTCP} {
		for _, argument := range p.gateNames(prefix) {
			address, path, _ := strings.Cut(argument, "/")
			e := Endpoint{Gate: prefix + argument, Address: completeAddress(address)}
			if prefix != GateTCP {
				// The error is that of urlProblem. Without a URL, the probe fails.
				e.URL, _ = url.Parse(strings.TrimSuffix(prefix, ":") + "://" + e.Address + "/" + path)
			}
			found = append(found, e)
		}
	}
	return found
}

// completeAddress adds the default host: the agent is on the network of its host.
func completeAddress(address string) string {
	if strings.HasPrefix(address, ":") {
		return "127.0.0.1" + address
	}
	return address
}

func urlProblem(argument string) string {
	address, path, _ := strings.Cut(argument, "/")
	const form = "write HOST:PORT/PATH without //, such as http:127.0.0.1:9879/healthz"
	switch {
	case strings.HasPrefix(argument, "//"):
		return form
	case strings.ContainsAny(path, "# \t\n"):
		return form + "; encode blanks and # in the path"
	}
	if problem := addressProblem(address); problem != "" {
		return problem
	}
	if _, err := url.Parse("http://" + completeAddress(address) + "/" + path); err != nil {
		return form + "; encode special characters in the path"
	}
	return ""
}

func addressProblem(address string) string {
	const form = "write HOST:PORT, such as 127.0.0.1:9879, [::1]:9879 or :9879 for this host"
	host, port, err := net.SplitHostPort(completeAddress(address))
	if err != nil {
		return form
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Sprintf("the port %q is not a number from 1 to 65535; %s", port, form)
	}
	ip, err := netip.ParseAddr(host)
	isAddress, isName := err == nil && ip.Zone() == "", len(validation.IsDNS1123Subdomain(strings.ToLower(host))) == 0
	if !isAddress && !isName {
		return fmt.Sprintf("the host %q is neither an IP address nor a name; %s", host, form)
	}
	return ""
}

// Units returns the systemd units that the policy waits for. Facts.Units must contain them.
func (p Policy) Units() []string { return p.gateNames(GateUnit) }

// gateNames returns what follows the prefix in the names of the forced gates, without
// duplicates.
func (p Policy) gateNames(prefix string) []string {
	var found []string
	for _, gate := range p.Force {
		if name, is := strings.CutPrefix(gate, prefix); is && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

func (p Policy) isForced(gate string) bool { return slices.Contains(p.Force, gate) }
