package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// backendDialTimeout limits one connection attempt to a backend on loopback. The kernel accepts
// connections for a paused process.
const backendDialTimeout = time.Second

// A ServiceProxy replaces kube-proxy for one Service: it listens on the ClusterIP and port of
// the Service and distributes connections over the backends in turn. If a backend refuses a
// connection, the proxy tries the next one, as if that backend were not ready.
type ServiceProxy struct {
	log      *slog.Logger
	listener net.Listener
	group    errgroup.Group

	mu       sync.Mutex // guards the fields below
	backends []string
	next     int
	closed   bool
	open     map[net.Conn]struct{}
}

// ServeService makes a Service reachable for the API server: the proxy forwards connections to
// the ClusterIP to the backends, each "host:port". The Service needs a ClusterIP and exactly
// one port, above 1023 unless the tests run as root. The caller closes the proxy.
func (s *Server) ServeService(ctx context.Context, namespace, name string, backends ...string) (*ServiceProxy, error) {
	service, err := s.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("serving service %s/%s: %w", namespace, name, err)
	}
	if len(service.Spec.Ports) != 1 {
		return nil, fmt.Errorf("serving service %s/%s: it has %d ports, want 1", namespace, name,
			len(service.Spec.Ports))
	}
	address := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port)))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("serving service %s/%s: %w", namespace, name, err)
	}
	p := &ServiceProxy{
		log: s.opts.Log.With("service", namespace+"/"+name), listener: listener, backends: backends,
		open: map[net.Conn]struct{}{},
	}
	p.group.Go(p.accept)
	return p, nil
}

// Address returns the ClusterIP and port.
func (p *ServiceProxy) Address() string { return p.listener.Addr().String() }

// SetBackends changes the backends of new connections. Open connections stay, as with
// kube-proxy.
func (p *ServiceProxy) SetBackends(backends ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backends = backends
}

// Close closes all connections and returns when all goroutines of the proxy have ended. It can
// be called more than once.
func (p *ServiceProxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	for conn := range p.open {
		_ = conn.Close() // the other side may have closed it
	}
	p.mu.Unlock()
	var err error
	if first {
		err = p.listener.Close()
	}
	return errors.Join(err, p.group.Wait())
}

func (p *ServiceProxy) accept() error {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting connections to a service: %w", err)
		}
		p.group.Go(func() error { p.forward(conn); return nil })
	}
}

// forward connects a client with a backend until either side closes the connection.
func (p *ServiceProxy) forward(front net.Conn) {
	if !p.track(front) {
		return
	}
	defer p.untrack(front)
	back, err := p.dialBackend()
	if err != nil {
		p.log.Info("no backend accepted a connection", "err", err)
		return
	}
	if !p.track(back) {
		return
	}
	var pair errgroup.Group
	for _, direction := range []struct{ to, from net.Conn }{{back, front}, {front, back}} {
		pair.Go(func() error {
			_, err := io.Copy(direction.to, direction.from)
			p.untrack(front)
			p.untrack(back)
			return err
		})
	}
	_ = pair.Wait() // a connection may end with an error
}

// dialBackend tries each backend once, starting with the next one in turn.
func (p *ServiceProxy) dialBackend() (net.Conn, error) {
	p.mu.Lock()
	backends, first := p.backends, p.next
	p.next++
	p.mu.Unlock()
	err := errors.New("the service has no backends")
	for i := range backends {
		conn, failed := net.DialTimeout("tcp4", backends[(first+i)%len(backends)], backendDialTimeout)
		if failed == nil {
			return conn, nil
		}
		err = failed
	}
	return nil, err
}

// track records a connection so that Close can close it. If Close has been called, track closes
// the connection and returns false.
func (p *ServiceProxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close() // the connection is not used
		return false
	}
	p.open[conn] = struct{}{}
	return true
}

func (p *ServiceProxy) untrack(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	_ = conn.Close() // the other side may have closed it
}
