package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/holdfast-dev/holdfast/internal/testenv"
	"github.com/holdfast-dev/holdfast/test/site"
	"github.com/holdfast-dev/holdfast/test/spcserver"
)

const (
	spcToken = "a-token-of-the-demo"
	// The workers' addresses are of no use but to tell whose they are: SPC's record of a machine says nothing by a loopback
	// address, which every machine has.
	workerIP, secondWorkerIP = "192.0.2.101", "192.0.2.102"
)

// world is everything that runs.
type world struct {
	*site.Site
	etcd   *testenv.Etcd
	spc    *spcserver.Server
	spcURL *httptest.Server
	out    io.Writer
}

func newWorld(out io.Writer) (*world, error) {
	s, err := site.New(site.Options{Name: "demo", Out: out})
	if err != nil {
		return nil, err
	}
	return &world{Site: s, out: out}, nil
}

// close stops everything. The logs stay if something went wrong.
func (w *world) close(ctx context.Context, well bool) error {
	if w.spcURL != nil {
		w.spcURL.Close()
	}
	return w.Close(ctx, well)
}

// startWebhooks starts an SPC API, and the webhooks that publish what it says.
func (w *world) startWebhooks(ctx context.Context) error {
	w.spcURL = httptest.NewServer(w.spc)
	token := filepath.Join(w.Dir, "spc-token")
	if err := os.WriteFile(token, []byte(spcToken), 0o600); err != nil {
		return err
	}
	return w.StartWebhooks(ctx, "--spc-url="+w.spcURL.URL, "--spc-token-file="+token, "--spc-organization=111", "--spc-cluster=23391")
}

// register registers a node as its kubelet does.
func (w *world) register(ctx context.Context, node, ip string, ready bool) error {
	_, err := w.Register(ctx, node, ip, ready)
	return err
}

// layCNI is what flannel's init containers leave on a host.
func (w *world) layCNI(node string) error {
	var err error
	for _, plugin := range []string{"flannel", "portmap", "bridge", "host-local", "loopback"} {
		err = errors.Join(err, w.Write(node, "opt/cni/bin/"+plugin, "#!/bin/sh\n", 0o755))
	}
	return errors.Join(err, w.Write(node, "etc/cni/net.d/10-flannel.conflist", `{
  "name": "cbr0", "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, 0o644))
}

// invite says how to go on by hand, and waits for Ctrl-C.
func (w *world) invite(ctx context.Context) {
	kubectl, err := testenv.Binary("kubectl")
	if err != nil {
		kubectl = "kubectl"
	}
	fmt.Fprintf(w.out, "\n── The cluster is yours until Ctrl-C\n\n   export KUBECONFIG=%s\n   alias kubectl=%s\n\n   the processes, to stop and continue with kill -STOP and -CONT:\n",
		w.API.Kubeconfig(), kubectl)
	for _, m := range w.etcd.Members() {
		fmt.Fprintf(w.out, "     %-10s %d\n", m.Name, m.PID())
	}
	for i, replica := range w.Webhooks() {
		fmt.Fprintf(w.out, "     webhook-%d  %d\n", i+1, replica.PID())
	}
	<-ctx.Done()
}
