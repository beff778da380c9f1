package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-dev/holdfast/internal/etcdprobe"
	"github.com/holdfast-dev/holdfast/internal/host"
	"github.com/holdfast-dev/holdfast/pkg/protect"
)

// inspectBudget is how long an inspection may take, whatever hangs.
const inspectBudget = 15 * time.Second

// inspectUsage explains `holdfast-agent inspect`; a flag that it does not explain fails a test.
func inspectUsage() string {
	return `holdfast-agent inspect prints what the agent sees on this host, what it would decide, and why. It needs no cluster, changes
nothing, and works without root: what only root may read is then shown as unknown.

  holdfast-agent inspect [flags]

  -o text|json                    for people (default) or for machines
  --ask-etcd=BOOL                 ask the etcd found here who it is and how its cluster stands (default true)
  --host-root=DIR                 where the host's / is mounted (default /)
  --provider-id=ID                the Node's spec.providerID, to compare with what an OpenStack machine calls itself;
                                  without it what the kubelet was told or cloud-init has noted is taken

The rest are the flags of holdfast-agent run, for what they change of the decision:
  --gates=auto|LIST  --network-plugin-label=KEY=VALUE  --network-plugin-marker=FILE
  --flannel-subnet-file=FILE  --trust-durable-subnet-file  --cni-conf-dir=DIR,...  --cni-bin-dir=DIR,...
  --protect-static-pods=BOOL  --etcd-ca=FILE --etcd-cert=FILE --etcd-key=FILE  --probe-timeout=DURATION

Exit status: 0 done, also if something is unknown; 1 failed; 2 a mistake on the command line.
`
}

// inspection is the command line of `holdfast-agent inspect`.
type inspection struct {
	raw
	output     string
	ask        bool
	providerID string
}

func inspectFlags(i *inspection) *flag.FlagSet {
	set := flag.NewFlagSet("holdfast-agent inspect", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&i.output, "o", "text", "")
	set.BoolVar(&i.ask, "ask-etcd", true, "")
	set.StringVar(&i.providerID, "provider-id", "", "")
	offered := map[string]bool{}
	for _, name := range []string{
		"host-root", "gates", "network-plugin-label", "network-plugin-marker", "flannel-subnet-file", "trust-durable-subnet-file",
		"cni-conf-dir", "cni-bin-dir", "protect-static-pods", "etcd-ca", "etcd-cert", "etcd-key", "probe-timeout",
	} {
		offered[name] = true
	}
	flags(&i.raw).VisitAll(func(f *flag.Flag) {
		if offered[f.Name] {
			set.Var(f.Value, f.Name, "")
		}
	})
	return set
}

func parseInspect(args []string) (inspection, error) {
	var i inspection
	set := inspectFlags(&i)
	switch err := set.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return i, err
	case err != nil:
		return i, misused("%v; `holdfast-agent inspect --help` names all flags", err)
	}
	if set.NArg() > 0 {
		return i, misused("%q is not a flag; everything that `holdfast-agent inspect` takes is a flag, such as -o json", set.Arg(0))
	}
	if i.output != "text" && i.output != "json" {
		return i, misused("-o %q is not known; choose text or json", i.output)
	}
	for _, check := range []func(*raw) error{checkHost, checkGates, checkEtcd, checkTimes} {
		if err := check(&i.raw); err != nil {
			return i, err
		}
	}
	return i, nil
}

// inspect prints what the agent sees on this host and what it would do.
func inspect(ctx context.Context, args []string, out, _ io.Writer) error {
	asked, err := parseInspect(args)
	if errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(out, inspectUsage())
		return err
	}
	if err != nil {
		return err
	}
	machine, err := host.New(asked.host)
	if err != nil {
		return misused("--host-root: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, inspectBudget)
	defer cancel()
	seen := look(ctx, machine, asked)
	if asked.output == "text" {
		return seen.print(out)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(seen); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return nil
}

// look takes the host as it is now, and decides as the agent would.
func look(ctx context.Context, machine *host.Host, asked inspection) report {
	prober := etcdprobe.New(etcdprobe.Options{Timeout: asked.probeTimeout})
	defer prober.Close()
	seen := report{Host: describeHost(asked.host.Root), Network: machine.Network(ctx)}
	seen.Host.BootID = seen.Network.BootID
	shown := machine.Look(ctx)
	seen.Etcd = etcdReport{Found: []foundReport{}, Unknown: shown.Unknown, Notes: shown.Notes}
	for _, sighting := range shown.Found {
		found := foundReport{Found: protect.Found{Sighting: sighting}}
		if asked.ask && (asked.staticPods || !sighting.InCluster) { // whom the agent asks: one that runs may show no process
			found.Answer = prober.Identify(ctx, sighting)
		}
		if found.Answered() && !found.Removed {
			observation := prober.Observe(ctx, sighting, found.Answer)
			found.Observation = &observation
		}
		seen.Etcd.Found = append(seen.Etcd.Found, found)
	}
	seen.OpenStack = describeMachine(machine.Machine(), asked.providerID)
	seen.Decision = seen.decide(asked)
	return seen
}
