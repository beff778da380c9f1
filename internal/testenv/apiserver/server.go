package apiserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/holdfast-dev/holdfast/internal/testenv/etcd"
	"github.com/holdfast-dev/holdfast/internal/testenv/loopback"
	"github.com/holdfast-dev/holdfast/internal/testenv/pki"
	"github.com/holdfast-dev/holdfast/internal/testenv/process"
)

const (
	apiServerPort = "6443"
	// apiServerHost is the number of the API server's address in its loopback network. Address
	// 1 is that of the Service "kubernetes". In a /24, Kubernetes assigns the first sixteen
	// addresses to Services only on request.
	apiServerHost = 2
	// serviceAccountIssuer is the issuer in every token that the API server creates.
	serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"
	// pollInterval is the interval at which a state without an event is checked. Each check of /readyz
	// or of a policy takes the server some milliseconds.
	pollInterval = 100 * time.Millisecond
)

// Options configure a Server.
type Options struct {
	// Dir holds keys, certificates, kubeconfigs, logs and the data of the server's etcd.
	Dir string
	// Log receives a line when the server is ready and when manifests are in effect. It may be
	// nil.
	Log *slog.Logger
	// EmulatedVersion makes the API server behave like an older version, such as "1.34": it
	// serves the APIs of that version and accepts new CEL expressions only as far as that
	// version supports them. By default the server uses its own version.
	EmulatedVersion string
	// Args are further arguments of the API server.
	Args []string
}

// A Server is a real kube-apiserver on loopback with its own etcd. RBAC, the Node authorizer,
// the default admission plugins and NodeRestriction are enabled.
//
// The addresses of its Services are loopback addresses. A process that listens on the ClusterIP
// and port of a Service therefore serves that Service for the API server, and a webhook
// configuration that names a Service works unchanged: see ServeService.
type Server struct {
	opts    Options
	net     *loopback.Network
	etcd    *etcd.Cluster
	process *process.Process
	ca      *pki.CA
	admin   *rest.Config
	client  *kubernetes.Clientset
	others  []*process.Process
	// mutates reports whether the server serves MutatingAdmissionPolicy v1.
	mutates bool
}

// Start starts a kube-apiserver and returns when it is ready, after about three seconds on an
// idle machine. The caller stops it.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting kube-apiserver: %w", err)
	}
	opts.Dir = dir
	s := &Server{opts: opts}
	begun := time.Now()
	if err = s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting kube-apiserver: %w", err), s.Stop(context.WithoutCancel(ctx)))
	}
	opts.Log.Info("kube-apiserver is ready", "address", s.admin.Host, "took",
		time.Since(begun).Round(time.Millisecond).String())
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	var err error
	if s.net, err = loopback.Hold(); err != nil {
		return err
	}
	if err = s.writeKeys(); err != nil {
		return err
	}
	if s.etcd, err = etcd.StartPlain(ctx, s.path("etcd")); err != nil {
		return err
	}
	if err = s.startProcess(ctx); err != nil || !s.mutates {
		return err
	}
	if err = (policyProbe{s, parametersInUse}).createMutating(ctx); err != nil {
		return fmt.Errorf("creating a policy with a parameter: %w", err)
	}
	return nil
}

// startProcess starts the process of the API server and waits until it is ready.
func (s *Server) startProcess(ctx context.Context) error {
	binary, err := process.Binary("kube-apiserver")
	if err != nil {
		return err
	}
	s.process, err = process.Start(process.Options{
		Name: "kube-apiserver", Path: binary, Args: s.args(), LogFile: s.Log(), Dir: s.opts.Dir,
		Env: []string{"GOGC=400"}, // a sixth less CPU for a start and the shipped manifests
	})
	if err != nil {
		return err
	}
	// /readyz includes the default roles and namespaces.
	err = poll(ctx, s.process, func(ctx context.Context) error {
		return s.client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	if err != nil {
		return err
	}
	served, err := s.client.Discovery().ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		return fmt.Errorf("listing the kinds of admission: %w", err)
	}
	s.mutates = slices.ContainsFunc(served.APIResources, func(resource metav1.APIResource) bool {
		return resource.Kind == "MutatingAdmissionPolicy"
	})
	return nil
}

// BornHeld reports whether Install makes new nodes born held: whether the API server serves
// MutatingAdmissionPolicy v1, as Kubernetes 1.36 and later do.
func (s *Server) BornHeld() bool { return s.mutates }

func (s *Server) args() []string {
	ip := s.net.IP(apiServerHost)
	args := []string{
		"--bind-address=" + ip,
		"--advertise-address=" + ip,
		"--secure-port=" + apiServerPort,
		"--endpoint-reconciler-type=none", // the default rejects loopback addresses
		"--service-cluster-ip-range=" + s.net.IP(0) + "/24",
		"--etcd-servers=" + s.etcd.Member(1).ClientURL,
		"--client-ca-file=" + s.path("ca.crt"),
		"--tls-cert-file=" + s.path("apiserver.crt"),
		"--tls-private-key-file=" + s.path("apiserver.key"),
		"--service-account-issuer=" + serviceAccountIssuer,
		"--service-account-key-file=" + s.path("sa.key"),
		"--service-account-signing-key-file=" + s.path("sa.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--profiling=false",
		"--audit-policy-file=" + s.path("audit-policy.yaml"),
		"--audit-log-path=" + s.path("audit.log"),
	}
	if s.opts.EmulatedVersion != "" {
		args = append(args, "--emulated-version="+s.opts.EmulatedVersion)
	}
	return append(args, s.opts.Args...)
}

// writeKeys writes the keys, certificates and other files that the API server reads.
func (s *Server) writeKeys() error {
	ca, err := pki.NewCA("kubernetes")
	if err != nil {
		return err
	}
	s.ca = ca
	ip := s.net.IP(apiServerHost)
	serving, err := ca.Issue(pki.CertOptions{
		CommonName: "kube-apiserver", Server: true,
		Hosts: []string{ip, s.net.IP(1), "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
	})
	if err != nil {
		return err
	}
	signing, err := signingKey()
	if err != nil {
		return err
	}
	if s.admin, err = s.User("kubernetes-admin", "system:masters"); err != nil {
		return err
	}
	if s.client, err = kubernetes.NewForConfig(s.admin); err != nil {
		return fmt.Errorf("creating the administrator's client: %w", err)
	}
	return errors.Join(
		ca.Write(s.path("ca.crt")),
		serving.Write(s.path("apiserver.crt"), s.path("apiserver.key")),
		pki.WriteFile(s.path("sa.key"), signing, 0o600),
		pki.WriteFile(s.path("audit-policy.yaml"), []byte(auditPolicy), 0o600),
		WriteKubeconfig(s.Kubeconfig(), s.admin),
	)
}

// signingKey returns a new key for service account tokens.
func signingKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("creating the key of service accounts: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("creating the key of service accounts: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// poll calls check until it returns nil. If the context or the process ends first, poll returns
// the last error of check.
func poll(ctx context.Context, server *process.Process, check func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		last := check(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-server.Done():
			return server.Exited()
		case <-ctx.Done():
			return fmt.Errorf("%w; last error: %w", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// EmulatedVersion returns the version that the API server emulates, or "".
func (s *Server) EmulatedVersion() string { return s.opts.EmulatedVersion }

// Log returns the path of the API server's log.
func (s *Server) Log() string { return s.path("kube-apiserver.log") }

// LogTail returns the last lines of the API server's log.
func (s *Server) LogTail(lines int) string { return s.process.LogTail(lines) }

// Process returns the API server's process, which can be paused, resumed and killed.
func (s *Server) Process() *process.Process { return s.process }

// Stop stops the API server, the controllers and the server's etcd. It can be called more than
// once.
func (s *Server) Stop(ctx context.Context) error {
	var err error
	for _, p := range s.others {
		err = errors.Join(err, p.Stop(ctx))
	}
	if s.process != nil {
		// SIGTERM would wait until every watch is closed, which is not needed here.
		err = errors.Join(err, s.process.Kill())
	}
	if s.etcd != nil {
		err = errors.Join(err, s.etcd.Stop())
	}
	if s.net != nil {
		err = errors.Join(err, s.net.Close())
		s.net = nil
	}
	return err
}

func (s *Server) path(name string) string { return filepath.Join(s.opts.Dir, name) }

// Restart starts the API server at the same address and with the same data, after
// Process().Kill. In between, its clients get refused connections.
func (s *Server) Restart(ctx context.Context) error { return s.startProcess(ctx) }

// StartControllers starts a kube-controller-manager with the given controllers only, for
// example "node-lifecycle-controller". It stops with the API server. The controller
// "node-ipam-controller" assigns each Node a podCIDR from 10.244.0.0/16.
func (s *Server) StartControllers(controllers ...string) (*process.Process, error) {
	return s.startBeside("kube-controller-manager",
		"--controllers="+strings.Join(controllers, ","),
		"--allocate-node-cidrs",
		"--cluster-cidr=10.244.0.0/16",
		"--service-account-private-key-file="+s.path("sa.key"),
		"--root-ca-file="+s.path("ca.crt"),
	)
}

// StartScheduler starts a kube-scheduler, which emulates the API server's version: otherwise it
// waits for APIs that an older server does not have. It stops with the API server.
func (s *Server) StartScheduler() (*process.Process, error) {
	version, err := s.client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("reading the version of the API server: %w", err)
	}
	return s.startBeside("kube-scheduler", "--emulated-version="+version.Major+"."+version.Minor)
}

// startBeside starts a program of Kubernetes with the rights of an administrator.
func (s *Server) startBeside(name string, args ...string) (*process.Process, error) {
	binary, err := process.Binary(name)
	if err != nil {
		return nil, err
	}
	process, err := process.Start(process.Options{
		Name: name, Path: binary, Dir: s.opts.Dir, LogFile: s.path(name + ".log"),
		Args: append(args, "--kubeconfig="+s.Kubeconfig(), "--leader-elect=false", "--secure-port=0"),
	})
	if err != nil {
		return nil, err
	}
	s.others = append(s.others, process)
	return process, nil
}
