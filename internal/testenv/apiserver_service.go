package testenv

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

// backendDialTimeout is how long a backend on loopback may take to accept; a paused process accepts through the kernel.
const backendDialTimeout = time.Second

// ServiceProxy plays kube-proxy for one Service: it listens on its ClusterIP and port and spreads the connections over
// the backends in turn. A backend that refuses a connection is passed over, as one that is not ready would be.
type ServiceProxy struct {
	log      *slog.Logger
	listener net.Listener
	group    errgroup.Group

	mu       sync.Mutex // guards what follows
	backends []string
	next     int
	closed   bool
	open     map[net.Conn]struct{}
}

// ServeService makes a Service reachable for the API server: connections to its ClusterIP go to the backends, which are
// "host:port". The Service needs a ClusterIP and exactly one port, above 1023 unless the tests run as root. Close it.
func (s *APIServer) ServeService(ctx context.Context, namespace, name string, backends ...string) (*ServiceProxy, error) {
	service, err := s.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("serving service %s/%s: %w", namespace, name, err)
	}
	if len(service.Spec.Ports) != 1 {
		return nil, fmt.Errorf("serving service %s/%s: it has %d ports, want 1", namespace, name, len(service.Spec.Ports))
	}
	address := net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(int(service.Spec.Ports[0].Port)))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", address)
	if err != nil {
		return nil, fmt.Errorf("serving service %s/%s: %w", namespace, name, err)
	}
	p := &ServiceProxy{
		log: s.opts.Log.With("service", namespace+"/"+name), listener: listener, backends: backends, open: map[net.Conn]struct{}{},
	}
	p.group.Go(p.accept)
	return p, nil
}

// Address is the ClusterIP and port.
func (p *ServiceProxy) Address() string { return p.listener.Addr().String() }

// SetBackends changes where new connections go. Those that are open stay, as they do with kube-proxy.
func (p *ServiceProxy) SetBackends(backends ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backends = backends
}

// Close ends all connections and returns when nothing of the proxy runs any more. It can be called more than once.
func (p *ServiceProxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	for conn := range p.open {
		_ = conn.Close() // it may have been closed by its other end, which is what is wanted
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

// forward joins one connection with a backend until either end is closed.
func (p *ServiceProxy) forward(front net.Conn) {
	if !p.keep(front) {
		return
	}
	defer p.drop(front)
	back, err := p.dial()
	if err != nil {
		p.log.Info("no backend took a connection", "err", err)
		return
	}
	if !p.keep(back) {
		return
	}
	var pair errgroup.Group
	for _, way := range []struct{ to, from net.Conn }{{back, front}, {front, back}} {
		pair.Go(func() error {
			_, err := io.Copy(way.to, way.from)
			p.drop(front)
			p.drop(back)
			return err
		})
	}
	_ = pair.Wait() // how a connection ends is no news
}

// dial tries each backend once, beginning with the next in turn.
func (p *ServiceProxy) dial() (net.Conn, error) {
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

// keep remembers a connection so that Close can end it, and closes it at once if Close has been called.
func (p *ServiceProxy) keep(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close() // nobody waits for it
		return false
	}
	p.open[conn] = struct{}{}
	return true
}

func (p *ServiceProxy) drop(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, conn)
	_ = conn.Close() // the other end may have been first
}
