package testenv

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
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	apiServerPort = "6443"
	// apiServerHost is the address of the API server in its loopback network, the first being the Service "kubernetes".
	// A /24 of Services gives its first sixteen addresses only to those who ask for them by number.
	apiServerHost = 2
	// serviceAccountIssuer stands in every token that the API server makes.
	serviceAccountIssuer = "https://kubernetes.default.svc.cluster.local"
	// pollInterval is how often a state without an event of its own is asked for.
	pollInterval = 20 * time.Millisecond
)

// APIServerOptions say what API server to start.
type APIServerOptions struct {
	// Dir holds keys, certificates, kubeconfigs, logs and the data of its etcd.
	Dir string
	// Log is told what is ready and in effect; nil means nobody.
	Log *slog.Logger
	// EmulatedVersion has the API server behave like an older one, "1.33" being the oldest: it serves the APIs of that
	// version, and takes new CEL expressions only as far as that version knew them. Empty means its own.
	EmulatedVersion string
}

// APIServer is a real kube-apiserver on loopback with an etcd of its own. RBAC, the Node authorizer and the default
// admission plugins are on, NodeRestriction too.
//
// The addresses of its Services are loopback addresses. So whatever listens on the ClusterIP and port of a Service is that
// Service to the API server, and a webhook configuration that names a Service works as it is shipped: see ServeService.
type APIServer struct {
	opts    APIServerOptions
	net     *Loopback
	etcd    *Etcd
	process *Process
	ca      *CA
	admin   *rest.Config
	client  *kubernetes.Clientset
	others  []*Process
}

// StartAPIServer starts a kube-apiserver and returns when it is ready, in about three seconds on an idle machine. Stop it.
func StartAPIServer(ctx context.Context, opts APIServerOptions) (*APIServer, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("starting kube-apiserver: %w", err)
	}
	opts.Dir = dir
	s := &APIServer{opts: opts}
	begun := time.Now()
	if err = s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting kube-apiserver: %w", err), s.Stop(context.WithoutCancel(ctx)))
	}
	opts.Log.Info("kube-apiserver is ready", "address", s.admin.Host, "took", time.Since(begun).Round(time.Millisecond).String())
	return s, nil
}

func (s *APIServer) start(ctx context.Context) error {
	binary, err := Binary("kube-apiserver")
	if err != nil {
		return err
	}
	if s.net, err = HoldLoopback(); err != nil {
		return err
	}
	if err = s.makeKeys(); err != nil {
		return err
	}
	if s.etcd, err = StartPlainEtcd(ctx, s.path("etcd")); err != nil {
		return err
	}
	s.process, err = StartProcess(ProcessOptions{
		Name: "kube-apiserver", Path: binary, Args: s.args(), LogFile: s.Log(), Dir: s.opts.Dir,
	})
	if err != nil {
		return err
	}
	return s.waitReady(ctx)
}

func (s *APIServer) args() []string {
	ip := s.net.IP(apiServerHost)
	args := []string{
		"--bind-address=" + ip,
		"--advertise-address=" + ip,
		"--secure-port=" + apiServerPort,
		"--endpoint-reconciler-type=none", // refuses to publish loopback addresses
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
	return args
}

// makeKeys writes what the API server needs to know itself and others.
func (s *APIServer) makeKeys() error {
	ca, err := NewCA("kubernetes")
	if err != nil {
		return err
	}
	s.ca = ca
	ip := s.net.IP(apiServerHost)
	serving, err := ca.Issue(CertOptions{
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
		return fmt.Errorf("making the administrator's client: %w", err)
	}
	return errors.Join(
		ca.Write(s.path("ca.crt")),
		serving.Write(s.path("apiserver.crt"), s.path("apiserver.key")),
		writeFile(s.path("sa.key"), signing, 0o600),
		writeFile(s.path("audit-policy.yaml"), []byte(auditPolicy), 0o600),
		WriteKubeconfig(s.Kubeconfig(), s.admin),
	)
}

// signingKey returns a new key for service account tokens.
func signingKey() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of service accounts: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("making the key of service accounts: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// waitReady returns when /readyz is ok, which includes the roles and namespaces that every cluster has.
func (s *APIServer) waitReady(ctx context.Context) error {
	return poll(ctx, s.process, func(ctx context.Context) error {
		return s.client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// poll asks until the answer is nil. It gives up when the context or the process ends, and then tells the last answer.
func poll(ctx context.Context, server *Process, ask func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		last := ask(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-server.Done():
			return server.Exited()
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer was: %w", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// Log returns the file that holds what the API server says.
func (s *APIServer) Log() string { return s.path("kube-apiserver.log") }

// LogTail returns the last lines of what the API server said.
func (s *APIServer) LogTail(lines int) string { return s.process.LogTail(lines) }

// Process is the API server's process: it can be paused, resumed and killed.
func (s *APIServer) Process() *Process { return s.process }

// Stop ends the API server, what was started beside it, and its etcd. It can be called more than once.
func (s *APIServer) Stop(ctx context.Context) error {
	var err error
	for _, p := range s.others {
		err = errors.Join(err, p.Stop(ctx))
	}
	if s.process != nil {
		// A request to end would be answered only when every watch has been closed; nothing here is worth the wait.
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

func (s *APIServer) path(name string) string { return filepath.Join(s.opts.Dir, name) }
