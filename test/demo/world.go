package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	namespace = "holdfast-system"
	// patience is how long anything may take that is not timed.
	patience = time.Minute
	spcToken = "a-token-of-the-demo"
)

// world is everything that runs.
type world struct {
	// dir holds it all but the hosts of workers, which are in volatile, on a tmpfs.
	dir, volatile string
	api           *testenv.APIServer
	etcd          *testenv.Etcd
	net           *testenv.Loopback
	service       *testenv.ServiceProxy
	spc           *spcserver.Server
	spcURL        *httptest.Server
	agents        map[string]*testenv.Process
	webhooks      []*testenv.Process
	out           io.Writer
}

func newWorld(out io.Writer) (*world, error) {
	dir, err := os.MkdirTemp("", "holdfast-demo-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the demo: %w", err)
	}
	// flannel's subnet file proves by lying on a tmpfs that it was written since the boot, as /run is on a real host.
	volatile, err := os.MkdirTemp("/dev/shm", "holdfast-demo-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a directory on a tmpfs, in the place of /run: %w", err), os.RemoveAll(dir))
	}
	return &world{dir: dir, volatile: volatile, out: out, agents: map[string]*testenv.Process{}}, nil
}

// close stops everything, last started first. The logs stay if something went wrong.
func (w *world) close(ctx context.Context, well bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	for _, p := range w.agents {
		err = errors.Join(err, p.Stop(ctx))
	}
	for _, p := range w.webhooks {
		err = errors.Join(err, p.Stop(ctx))
	}
	if w.service != nil {
		err = errors.Join(err, w.service.Close())
	}
	if w.spcURL != nil {
		w.spcURL.Close()
	}
	if w.etcd != nil {
		err = errors.Join(err, w.etcd.Stop())
	}
	if w.api != nil {
		err = errors.Join(err, w.api.Stop(ctx))
	}
	if w.net != nil {
		err = errors.Join(err, w.net.Close())
	}
	err = errors.Join(err, os.RemoveAll(w.volatile))
	if well && err == nil {
		return os.RemoveAll(w.dir)
	}
	fmt.Fprintf(w.out, "\n   the logs are in %s\n", w.dir)
	return err
}

// host is the directory that plays the root of a node's host. A worker's lies on a tmpfs, where its /run must be; etcd
// would fill a small tmpfs with the space that it sets aside for its log.
func (w *world) host(node string) string {
	if strings.HasPrefix(node, "worker") {
		return filepath.Join(w.volatile, node)
	}
	return filepath.Join(w.dir, "hosts", node)
}

// startAgent starts the built agent for a node, with the token that a DaemonSet's pod would have there.
func (w *world) startAgent(ctx context.Context, node string) error {
	identity, err := w.api.ServiceAccountConfig(ctx, namespace, "holdfast-agent", node)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(w.dir, node+".kubeconfig")
	if err := testenv.WriteKubeconfig(kubeconfig, identity); err != nil {
		return err
	}
	binary, err := testenv.Binary("holdfast-agent")
	if err != nil {
		return err
	}
	w.agents[node], err = testenv.StartProcess(testenv.ProcessOptions{
		Name: "agent of " + node, Path: binary, LogFile: filepath.Join(w.dir, node+".agent.log"),
		Args: []string{
			"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + w.host(node), "--health-listen=",
			"--spc-inventory=" + namespace + "/holdfast-spc-inventory", "--log-format=text",
		},
	})
	return err
}

// startWebhook starts one replica of the built webhook and returns where it listens.
func (w *world) startWebhook(ctx context.Context, name string) (string, error) {
	identity, err := w.api.ServiceAccountConfig(ctx, namespace, "holdfast-webhook", "")
	if err != nil {
		return "", err
	}
	kubeconfig := filepath.Join(w.dir, name+".kubeconfig")
	if err := testenv.WriteKubeconfig(kubeconfig, identity); err != nil {
		return "", err
	}
	port, err := testenv.ReservePort()
	if err != nil {
		return "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port.Number)
	binary, err := testenv.Binary("holdfast-webhook")
	if err != nil {
		return "", err
	}
	process, err := testenv.StartProcess(testenv.ProcessOptions{
		Name: name, Path: binary, LogFile: filepath.Join(w.dir, name+".log"),
		Args: []string{
			"--kubeconfig=" + kubeconfig, "--namespace=" + namespace, "--listen=" + address, "--metrics-listen=", "--health-listen=",
			"--spc-url=" + w.spcURL.URL, "--spc-token-file=" + filepath.Join(w.dir, "spc-token"),
			"--spc-organization=111", "--spc-cluster=23391", "--log-format=text",
		},
	})
	w.webhooks = append(w.webhooks, process)
	return address, err
}

// dead returns an error if anything that should run has ended.
func (w *world) dead() error {
	processes := slices.Clone(w.webhooks)
	for _, p := range w.agents {
		processes = append(processes, p)
	}
	for _, p := range processes {
		if err := p.Exited(); err != nil {
			return err
		}
	}
	return nil
}

// until asks every 100 ms until the answer is nil. It gives up after a minute, or when something that should run has
// ended, and then says what it waited for and what the last answer was.
func (w *world) until(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		last := ask(ctx)
		if last == nil {
			return nil
		}
		if err := w.dead(); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w; at last: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

// invite says how to go on by hand, and waits for Ctrl-C.
func (w *world) invite(ctx context.Context) {
	kubectl, err := testenv.Binary("kubectl")
	if err != nil {
		kubectl = "kubectl"
	}
	fmt.Fprintf(w.out, "\n── The cluster is yours until Ctrl-C\n\n   export KUBECONFIG=%s\n   alias kubectl=%s\n\n   the processes, to stop and continue with kill -STOP and -CONT:\n",
		w.api.Kubeconfig(), kubectl)
	for _, m := range w.etcd.Members() {
		fmt.Fprintf(w.out, "     %-10s %d\n", m.Name, m.PID())
	}
	for i, p := range w.webhooks {
		fmt.Fprintf(w.out, "     webhook-%d  %d\n", i+1, p.PID())
	}
	<-ctx.Done()
}
