package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
	"github.com/holdfast-dev/holdfast/test/fixture"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	spcToken = "a-token-of-the-demo"
	// The workers' addresses are not loopback addresses, because Holdfast ignores SPC's record
	// of a machine with a loopback address, which every machine has.
	workerIP, secondWorkerIP, thirdWorkerIP = "192.0.2.101", "192.0.2.102", "192.0.2.103"
)

// A demo is the environment of the demo and its output.
type demo struct {
	*fixture.Environment
	*stepPrinter
	etcd      *etcd.Cluster
	spc       *spcserver.Server
	spcServer *httptest.Server
}

func newDemo(out io.Writer, verbose, metrics bool) (*demo, error) {
	environment, err := fixture.New(fixture.Options{Name: "demo", Out: out, Metrics: metrics})
	if err != nil {
		return nil, err
	}
	return &demo{Environment: environment, stepPrinter: &stepPrinter{out: out, verbose: verbose}}, nil
}

// close stops all processes. It keeps the logs if the demo failed.
func (d *demo) close(ctx context.Context, succeeded bool) error {
	if d.spcServer != nil {
		d.spcServer.Close()
	}
	return d.Close(ctx, succeeded)
}

// startWebhooks starts an SPC API and the webhooks, which publish its records.
func (d *demo) startWebhooks(ctx context.Context) error {
	d.spcServer = httptest.NewServer(d.spc)
	token := filepath.Join(d.Dir, "spc-token")
	if err := os.WriteFile(token, []byte(spcToken), 0o600); err != nil {
		return err
	}
	return d.StartWebhooks(ctx, "--spc-url="+d.spcServer.URL, "--spc-token-file="+token,
		"--spc-organization=111", "--spc-cluster=23391")
}

// kubectl runs kubectl and adds the command and its output to the details of the next step.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	out, err := d.API.Kubectl(ctx, args...)
	d.show("kubectl "+strings.Join(args, " "), out)
	return out, err
}

// releaseNode writes flannel's subnet file. It returns the time until a watch reports that the
// node is schedulable.
func (d *demo) releaseNode(ctx context.Context, node string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, fixture.Timeout)
	defer cancel()
	nodes := d.API.Client().CoreV1().Nodes()
	n, err := nodes.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	watch, err := nodes.Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + node, ResourceVersion: n.ResourceVersion,
	})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	if err := d.WriteSubnetFile(node); err != nil {
		return 0, err
	}
	written := time.Now()
	for event := range watch.ResultChan() {
		if n, ok := event.Object.(*corev1.Node); ok && !n.Spec.Unschedulable {
			return time.Since(written), nil
		}
	}
	return 0, fmt.Errorf("waiting for the release of node %s: %w", node, errors.Join(d.CheckProcesses(), ctx.Err()))
}

// printNextSteps prints commands to try after the demo.
func (d *demo) printNextSteps() {
	fmt.Fprint(d.out, `
The demo's cluster has been deleted. To try next:

  make demo V=1      # the same steps, with each kubectl command and its output
  make demo KEEP=1   # keep the cluster running, and get commands to try on it
  make build && sudo bin/holdfast-agent inspect   # detect etcd on this host; changes nothing

To install Holdfast on a cluster, see "Install" in README.md.
`)
}

// waitForInterrupt prints commands to try on the running cluster and waits for Ctrl-C.
func (d *demo) waitForInterrupt(ctx context.Context) {
	kubectl, err := process.Binary("kubectl")
	if err != nil {
		kubectl = "kubectl"
	}
	fmt.Fprintf(d.out, `
The cluster runs until Ctrl-C. To try it, paste in another terminal:

  export KUBECONFIG=%s
  alias kubectl=%s

  kubectl get nodes,etcdclusters
  kubectl describe node etcd-3      # the condition EtcdMember, and why the node is protected
  kubectl delete node etcd-3        # refused: etcd-1 counts as lost
  kubectl get etcdclusters -o yaml  # bindings and grants
  kubectl get etcdobservations      # what each agent observed

Pause a process with kill -STOP and continue it with kill -CONT:

`, d.API.Kubeconfig(), kubectl)
	for _, m := range d.etcd.Members() {
		if m.Running() {
			fmt.Fprintf(d.out, "  %-10s %d\n", m.Name, m.PID())
		}
	}
	for i, replica := range d.Webhooks() {
		fmt.Fprintf(d.out, "  webhook-%d  %d\n", i+1, replica.PID())
	}
	<-ctx.Done()
}

// recordEvery is the time between two scrapes.
const recordEvery = 2 * time.Second

// startRecording records the metrics of all programs into a file, until the function that it
// returns is called. Without a file name it does nothing.
func (d *demo) startRecording(ctx context.Context, name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("creating the file for the metrics: %w", err)
	}
	recording, cancel := context.WithCancel(ctx)
	out, ended := gzip.NewWriter(file), make(chan error, 1)
	go func() { ended <- d.RecordMetrics(recording, out, recordEvery) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, out.Close(), file.Close())
	}, nil
}

// causeSeries causes what the demo is too short for, so that the recorded metrics show it: a held
// node, an agent that does not answer, and an etcd member that fails.
func (d *demo) causeSeries(ctx context.Context) error {
	d.section("Record the metrics")
	// The leader probes every 15 to 30 s.
	const node, short, long = "worker-3", 20 * time.Second, 40 * time.Second
	agent, member := d.Agent("etcd-3"), d.etcd.Member(3)
	for _, event := range []struct {
		what  string
		after time.Duration
		do    func() error
	}{
		{"worker-3 joins without a network", short, func() error {
			_, err := d.RegisterNode(ctx, node, thirdWorkerIP, false)
			return errors.Join(err, d.StartAgent(ctx, node))
		}},
		{"the network of worker-3 works", short, func() error {
			return errors.Join(d.WriteCNI(node), d.WriteSubnetFile(node))
		}},
		{"the agent of etcd-3 hangs", long, agent.Pause},
		{"the agent of etcd-3 runs again", short, agent.Resume},
		{"etcd on etcd-3 fails", long, member.Kill},
		{"etcd on etcd-3 runs again", long, func() error { return member.Start(ctx) }},
	} {
		if err := errors.Join(event.do(), fixture.Wait(ctx, event.after)); err != nil {
			return fmt.Errorf("%s: %w", event.what, err)
		}
		d.note("%s", event.what)
	}
	return nil
}
