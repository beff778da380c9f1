package main

import (
	"crypto/x509"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/spcapi"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// config is the command line, checked.
type config struct {
	kubeconfig, namespace string
	leaderElect           bool
	leaseDuration         time.Duration

	observerWait time.Duration
	tolerance    int

	holds readiness.Patience

	listen, metricsListen, healthListen string
	service, webhookConfiguration       string
	tlsSecret                           string
	caValidity, certValidity            time.Duration
	certSettle                          time.Duration
	clientCAFile, clientName            string

	spc          spcapi.Options
	spcInventory string

	logLevel slog.Level
	logJSON  bool
	version  bool
}

// raw is the command line as it was written.
type raw struct {
	config
	level, logFormat, onStuckHold string
}

// flags declares every flag. Their help is in usage.go, by topic and in order of use.
func flags(r *raw) *flag.FlagSet {
	set := flag.NewFlagSet("webhook", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&r.kubeconfig, "kubeconfig", "", "")
	set.StringVar(&r.namespace, "namespace", "holdfast-system", "")
	set.BoolVar(&r.leaderElect, "leader-elect", true, "")
	set.DurationVar(&r.leaseDuration, "lease-duration", 15*time.Second, "")
	set.DurationVar(&r.observerWait, "observer-wait", 3*time.Second, "")
	set.IntVar(&r.tolerance, "min-remaining-tolerance", 0, "")
	set.DurationVar(&r.holds.Agent, "agent-missing-after", 2*time.Minute, "")
	set.DurationVar(&r.holds.Hold, "stuck-hold-after", 10*time.Minute, "")
	set.StringVar(&r.onStuckHold, "on-stuck-hold", keepStuck, "")
	set.StringVar(&r.listen, "listen", ":9443", "")
	set.StringVar(&r.metricsListen, "metrics-listen", ":8080", "")
	set.StringVar(&r.healthListen, "health-listen", ":8081", "")
	set.StringVar(&r.service, "service", "holdfast-webhook", "")
	set.StringVar(&r.webhookConfiguration, "webhook-configuration", "holdfast", "")
	set.StringVar(&r.tlsSecret, "tls-secret", "holdfast-webhook-tls", "")
	set.DurationVar(&r.caValidity, "ca-validity", 5*365*24*time.Hour, "")
	set.DurationVar(&r.certValidity, "cert-validity", 90*24*time.Hour, "")
	set.DurationVar(&r.certSettle, "cert-settle", 10*time.Minute, "")
	set.StringVar(&r.clientCAFile, "client-ca-file", "", "")
	set.StringVar(&r.clientName, "client-name", "", "")
	set.StringVar(&r.spc.BaseURL, "spc-url", "", "")
	set.StringVar(&r.spc.TokenFile, "spc-token-file", "", "")
	set.Int64Var(&r.spc.Organization, "spc-organization", 0, "")
	set.Int64Var(&r.spc.Cluster, "spc-cluster", 0, "")
	set.StringVar(&r.spc.SecretDir, "spc-secret-dir", "", "")
	set.StringVar(&r.spc.CAFile, "spc-ca-file", "", "")
	set.StringVar(&r.spcInventory, "spc-inventory", "holdfast-spc-inventory", "")
	set.StringVar(&r.level, "log-level", "info", "")
	set.StringVar(&r.logFormat, "log-format", "json", "")
	set.BoolVar(&r.version, "version", false, "")
	return set
}

// parse reads the command line. Every error says what to write instead, but flag.ErrHelp, which is no mistake.
func parse(args []string) (config, error) {
	var r raw
	set := flags(&r)
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return config{}, err
	case err != nil:
		return config{}, misused("%v", err)
	}
	if set.NArg() > 0 {
		return config{}, misused("%q is not a flag; everything that the webhook takes is a flag, such as --namespace=NAME", set.Arg(0))
	}
	for _, check := range []func(*raw) error{checkNames, checkTimes, checkHolds, checkAddresses, checkClientCA, checkSPC, checkOutput} {
		if err := check(&r); err != nil {
			return config{}, err
		}
	}
	return r.config, nil
}

func checkNames(r *raw) error {
	for _, n := range []struct {
		flag, value string
		problems    func(string) []string
	}{
		{"--namespace", r.namespace, validation.IsDNS1123Label},
		{"--service", r.service, validation.IsDNS1035Label},
		{"--webhook-configuration", r.webhookConfiguration, validation.IsDNS1123Subdomain},
		{"--tls-secret", r.tlsSecret, validation.IsDNS1123Subdomain},
		{"--spc-inventory", r.spcInventory, validation.IsDNS1123Subdomain},
	} {
		if problems := n.problems(n.value); len(problems) > 0 {
			return misused("%s=%q cannot be a name in Kubernetes: %s", n.flag, n.value, problems[0])
		}
	}
	return nil
}

func checkTimes(r *raw) error {
	switch {
	case r.observerWait < 100*time.Millisecond || r.observerWait > 5*time.Second:
		return misused("--observer-wait=%s: choose between 100ms and 5s; the webhook answers within 8s, and needs some of it to write", r.observerWait)
	case r.tolerance < 0 || r.tolerance > 9:
		return misused("--min-remaining-tolerance=%d: choose between 0 and 9; with three voters anything above 0 refuses every deletion", r.tolerance)
	case r.leaseDuration < 3*time.Second || r.leaseDuration > 10*time.Minute:
		return misused("--lease-duration=%s: choose between 3s and 10m", r.leaseDuration)
	case r.caValidity <= 0 || r.certValidity <= 0 || r.certSettle <= 0:
		return misused("--ca-validity, --cert-validity and --cert-settle must be above 0")
	case r.certValidity > r.caValidity/2:
		return misused("--cert-validity=%s is more than half of --ca-validity=%s; the certificate could outlive its authority", r.certValidity, r.caValidity)
	case r.certSettle > r.certValidity/3:
		return misused("--cert-settle=%s is more than a third of --cert-validity=%s; the certificate would expire while it is being renewed", r.certSettle, r.certValidity)
	}
	return nil
}

// What --on-stuck-hold may be.
const (
	keepStuck    = "keep"
	releaseStuck = "release"
)

func checkHolds(r *raw) error {
	switch {
	case r.onStuckHold != keepStuck && r.onStuckHold != releaseStuck:
		return misused("--on-stuck-hold=%q is not known; choose keep or release", r.onStuckHold)
	case r.holds.Agent < time.Second || r.holds.Hold > 24*time.Hour:
		return misused("--agent-missing-after=%s --stuck-hold-after=%s: choose between 1s and 24h", r.holds.Agent, r.holds.Hold)
	case r.holds.Hold <= r.holds.Agent:
		return misused("--stuck-hold-after=%s is not more than --agent-missing-after=%s", r.holds.Hold, r.holds.Agent)
	}
	r.holds.Release, r.holds.Namespace = r.onStuckHold == releaseStuck, r.namespace
	return nil
}

func checkAddresses(r *raw) error {
	for _, a := range []struct {
		flag, value string
		optional    bool
	}{{"--listen", r.listen, false}, {"--metrics-listen", r.metricsListen, true}, {"--health-listen", r.healthListen, true}} {
		if a.value == "" && a.optional {
			continue
		}
		if _, err := net.ResolveTCPAddr("tcp", a.value); err != nil || a.value == "" {
			return misused("%s=%q is not an address and port such as :9443 or 10.0.0.1:9443", a.flag, a.value)
		}
	}
	return nil
}

func checkClientCA(r *raw) error {
	if r.clientCAFile == "" {
		if r.clientName != "" {
			return misused("--client-name=%q has no effect without --client-ca-file; add the file or leave the name out", r.clientName)
		}
		return nil
	}
	if _, err := readPool(r.clientCAFile); err != nil {
		return misused("--client-ca-file=%q cannot be used: %v", r.clientCAFile, err)
	}
	return nil
}

// readPool reads the certificates of a file.
func readPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("there is no certificate in it")
	}
	return pool, nil
}

func checkOutput(r *raw) error {
	if err := r.logLevel.UnmarshalText([]byte(r.level)); err != nil {
		return misused("--log-level=%q is not known; choose debug, info, warn or error", r.level)
	}
	if r.logFormat != "json" && r.logFormat != "text" {
		return misused("--log-format=%q is not known; choose json or text", r.logFormat)
	}
	r.logJSON = r.logFormat == "json"
	return nil
}
