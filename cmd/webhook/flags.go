package main

import (
	"flag"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/holdfast-dev/holdfast/internal/control/servingcert"
	"github.com/holdfast-dev/holdfast/internal/control/spcapi"
	"github.com/holdfast-dev/holdfast/internal/operator/cli"
	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
	"github.com/holdfast-dev/holdfast/pkg/departure"
	"github.com/holdfast-dev/holdfast/pkg/protect/observation"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
)

// config holds the checked flags.
type config struct {
	kubeconfig, namespace string
	leaseDuration         time.Duration

	observerWait time.Duration
	tolerance    int
	maxClusters  int
	departures   departure.Table
	zoneLabel    string
	guardDrains  bool

	holds readiness.HoldLimits

	clusterAPI, karpenter bool

	listen, metricsListen, healthListen string
	metricsSecure                       bool
	certificates                        servingcert.Options
	clientCAFile, clientName            string

	spc spcapi.Options

	log     cli.LogOptions
	version bool
}

// flags holds the flags as they were written.
type flags struct {
	config
	onStuckHold             string
	doomedTaints, awayMarks []string
	logFlags                cli.LogFlags
}

// flagSet declares every flag. Their help is in usage.go.
func (f *flags) flagSet() *flag.FlagSet {
	set := cli.NewFlagSet("holdfast-webhook")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "")
	set.StringVar(&f.namespace, "namespace", "holdfast-system", "")
	set.DurationVar(&f.leaseDuration, "lease-duration", 15*time.Second, "")
	set.DurationVar(&f.observerWait, "observer-wait", 3*time.Second, "")
	set.IntVar(&f.tolerance, "min-remaining-tolerance", 0, "")
	set.IntVar(&f.maxClusters, "max-etcd-clusters", 16, "")
	set.Func("doomed-taint", "", appendTo(&f.doomedTaints))
	set.Func("away-mark", "", appendTo(&f.awayMarks))
	set.StringVar(&f.zoneLabel, "zone-label", corev1.LabelTopologyZone, "")
	set.BoolVar(&f.guardDrains, "guard-drains", true, "")
	set.BoolVar(&f.clusterAPI, "cluster-api", false, "")
	set.BoolVar(&f.karpenter, "karpenter", false, "")
	set.DurationVar(&f.holds.Agent, "agent-missing-after", 2*time.Minute, "")
	set.DurationVar(&f.holds.Hold, "stuck-hold-after", 10*time.Minute, "")
	set.StringVar(&f.onStuckHold, "on-stuck-hold", "keep", "")
	set.StringVar(&f.listen, "listen", ":9443", "")
	set.StringVar(&f.metricsListen, "metrics-listen", ":8080", "")
	set.BoolVar(&f.metricsSecure, "metrics-secure", false, "")
	set.StringVar(&f.healthListen, "health-listen", ":8081", "")
	set.StringVar(&f.certificates.CertFile, "tls-cert-file", "", "")
	set.StringVar(&f.certificates.KeyFile, "tls-key-file", "", "")
	set.StringVar(&f.clientCAFile, "client-ca-file", "", "")
	set.StringVar(&f.clientName, "client-name", "", "")
	set.StringVar(&f.spc.BaseURL, "spc-url", "", "")
	set.StringVar(&f.spc.TokenFile, "spc-token-file", "", "")
	set.Int64Var(&f.spc.Organization, "spc-organization", 0, "")
	set.Int64Var(&f.spc.Cluster, "spc-cluster", 0, "")
	set.StringVar(&f.spc.SecretDir, "spc-secret-dir", "", "")
	set.StringVar(&f.spc.CAFile, "spc-ca-file", "", "")
	f.logFlags.AddTo(set)
	set.BoolVar(&f.version, "version", false, "")
	return set
}

// appendTo returns the setter of a flag that may be repeated.
func appendTo(list *[]string) func(string) error {
	return func(value string) error {
		*list = append(*list, value)
		return nil
	}
}

// parse returns the checked flags, a usage error, or flag.ErrHelp.
func parse(args []string) (config, error) {
	var f flags
	err := cli.ParseFlags(f.flagSet(), args, "--namespace=NAME", &f,
		checkNames, checkTimes, completeDepartures, completeHolds, checkTLSFiles, checkClientCA, completeSPC,
		completeOutput)
	return f.config, err
}

func checkNames(f *flags) error {
	if problems := validation.IsDNS1123Label(f.namespace); len(problems) > 0 {
		return cli.UsageErrorf("--namespace=%q is not a valid Kubernetes name: %s", f.namespace, problems[0])
	}
	if problems := validation.IsQualifiedName(f.zoneLabel); len(problems) > 0 {
		return cli.UsageErrorf("--zone-label=%q is not the key of a label: %s", f.zoneLabel, problems[0])
	}
	return nil
}

func checkTimes(f *flags) error {
	switch {
	case f.observerWait < 100*time.Millisecond || f.observerWait > 5*time.Second:
		return cli.UsageErrorf("--observer-wait=%s is out of range; use 100ms to 5s, because a review takes 8s at most",
			f.observerWait)
	case f.tolerance < 0 || f.tolerance > 9:
		return cli.UsageErrorf("--min-remaining-tolerance=%d is out of range; use 0 to 9; "+
			"with three voters every value above 0 refuses every deletion", f.tolerance)
	case f.maxClusters < 1 || f.maxClusters > 256:
		return cli.UsageErrorf("--max-etcd-clusters=%d is out of range; use 1 to 256", f.maxClusters)
	case f.leaseDuration < 3*time.Second || f.leaseDuration > 10*time.Minute:
		return cli.UsageErrorf("--lease-duration=%s is out of range; use 3s to 10m", f.leaseDuration)
	}
	return nil
}

func completeDepartures(f *flags) error {
	for _, key := range f.doomedTaints {
		if problem := markKeyProblem(key); problem != "" {
			return cli.UsageErrorf("--doomed-taint=%q %s", key, problem)
		}
		f.departures = f.departures.Add(departure.ForGood, key)
	}
	for _, key := range f.awayMarks {
		condition, isCondition := strings.CutPrefix(key, departure.ConditionPrefix)
		problem := conditionProblem(condition)
		if !isCondition {
			problem = markKeyProblem(key)
		}
		if problem == "" && slices.Contains(f.doomedTaints, key) {
			problem = "is also a --doomed-taint; a node that goes for good is not away for a while"
		}
		if problem != "" {
			return cli.UsageErrorf("--away-mark=%q %s", key, problem)
		}
		f.departures = f.departures.Add(departure.ForAWhile, key)
	}
	return nil
}

// conditionProblem returns why a condition cannot be a mark, or an empty string.
func conditionProblem(kind string) string {
	withoutMaintenance := []corev1.NodeConditionType{
		corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeNetworkUnavailable, observation.EtcdMemberCondition, readiness.NetworkHeld,
	}
	switch {
	case len(validation.IsQualifiedName(kind)) > 0:
		return "must be the type of a condition without a status, such as condition:example.com/Repair"
	case slices.Contains(withoutMaintenance, corev1.NodeConditionType(kind)):
		return "is a condition that Kubernetes or Holdfast sets on nodes that stay"
	}
	return ""
}

// markKeyProblem returns why a key cannot be a mark, or an empty string. A mark that Holdfast or
// Kubernetes sets on nodes that stay would refuse the deletion of every etcd node.
func markKeyProblem(key string) string {
	domain, name, _ := strings.Cut(key, "/")
	isPrefix := strings.HasSuffix(key, "/")
	problems := validation.IsQualifiedName(key)
	if isPrefix {
		problems = validation.IsDNS1123Subdomain(strings.TrimSuffix(key, "/"))
	}
	kubernetes := "." + domain
	ofKubernetes := strings.HasSuffix(kubernetes, ".kubernetes.io") || strings.HasSuffix(kubernetes, ".k8s.io")
	switch {
	case strings.ContainsAny(key, "=: "):
		return "must be a key without a value and an effect, such as example.com/reboot"
	case len(problems) > 0:
		return "is neither a key such as example.com/reboot nor a prefix such as example.com/: " + problems[0]
	case domain == "holdfast.dev" || slices.Contains(autoscaler.Keys(), key):
		return "is a key that Holdfast sets itself"
	case isPrefix && slices.ContainsFunc(autoscaler.Keys(), func(own string) bool { return strings.HasPrefix(own, key) }):
		return "matches an annotation that Holdfast sets on etcd nodes; name the whole key"
	case isPrefix && ofKubernetes:
		return "matches keys that Kubernetes sets on every node; name the whole key"
	case domain == "node.kubernetes.io" && name == "unschedulable":
		return "is the taint of a cordon, which does not say that the machine goes away"
	}
	return ""
}

func completeHolds(f *flags) error {
	switch {
	case f.onStuckHold != "keep" && f.onStuckHold != "release":
		return cli.UsageErrorf("--on-stuck-hold=%q is unknown; use keep or release", f.onStuckHold)
	case f.holds.Agent < time.Second || f.holds.Hold > 24*time.Hour:
		return cli.UsageErrorf("--agent-missing-after=%s --stuck-hold-after=%s are out of range; use 1s to 24h",
			f.holds.Agent, f.holds.Hold)
	case f.holds.Hold <= f.holds.Agent:
		return cli.UsageErrorf("--stuck-hold-after=%s must be longer than --agent-missing-after=%s",
			f.holds.Hold, f.holds.Agent)
	}
	f.holds.Release, f.holds.Namespace = f.onStuckHold == "release", f.namespace
	return nil
}

func completeOutput(f *flags) (err error) {
	if f.log, err = f.logFlags.Options(); err != nil {
		return err
	}
	if f.metricsSecure && f.metricsListen == "" {
		return cli.UsageErrorf("--metrics-secure has no effect without --metrics-listen; " +
			"add an address such as :8080, or remove --metrics-secure")
	}
	const example = ":9443 or 10.0.0.1:9443"
	err = cli.CheckAddress("--listen", f.listen, example)
	if err == nil && f.metricsListen != "" {
		err = cli.CheckAddress("--metrics-listen", f.metricsListen, example)
	}
	if err == nil && f.healthListen != "" {
		err = cli.CheckAddress("--health-listen", f.healthListen, example)
	}
	return err
}

// checkTLSFiles does not read the files, which may not exist yet.
func checkTLSFiles(f *flags) error {
	if (f.certificates.CertFile == "") != (f.certificates.KeyFile == "") {
		return cli.UsageErrorf("--tls-cert-file and --tls-key-file belong together; set both, " +
			"or none to let the webhook issue its certificate")
	}
	return nil
}

func checkClientCA(f *flags) error {
	if f.clientCAFile == "" {
		if f.clientName != "" {
			return cli.UsageErrorf("--client-name=%q has no effect without --client-ca-file; "+
				"add the file, or remove the name", f.clientName)
		}
		return nil
	}
	if _, err := readCertPool(f.clientCAFile); err != nil {
		return cli.UsageErrorf("--client-ca-file=%q is not usable: %v", f.clientCAFile, err)
	}
	return nil
}

// isSPCConfigured reports whether there is an SPC API: its token is required.
func isSPCConfigured(o spcapi.Options) bool { return o.TokenFile != "" || o.SecretDir != "" }

// completeSPC completes the flags from the environment and checks them. Its errors never
// repeat a value: the value may be the token, in the wrong flag.
func completeSPC(f *flags) error {
	if !isSPCConfigured(f.spc) {
		if f.spc != (spcapi.Options{}) {
			return cli.UsageErrorf("--spc-url, --spc-organization, --spc-cluster and --spc-ca-file have no effect " +
				"without --spc-token-file or --spc-secret-dir")
		}
		return nil
	}
	var err error
	if f.spc, err = f.spc.WithEnvironment(os.Getenv); err == nil {
		_, err = spcapi.NewClient(f.spc)
	}
	if err != nil {
		return cli.UsageErrorf("the --spc-* flags: %v", err)
	}
	return nil
}
