package site

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// Webhook is one replica.
type Webhook struct {
	site             *Site
	name, kubeconfig string
	port             *testenv.Port

	mu      sync.Mutex // guards process
	process *testenv.Process
}

// StartAgent starts the built agent for a node, with the token that a DaemonSet's pod would have there.
func (s *Site) StartAgent(ctx context.Context, node string) error {
	m := s.machine(node)
	name := fmt.Sprintf("%s.%d", node, m.number)
	kubeconfig, err := s.account(ctx, "holdfast-agent", node, name)
	if err != nil {
		return err
	}
	agent, err := s.start("agent of "+node, name+".agent.log", s.opts.Agent, "holdfast-agent", []string{
		"run", "--node=" + node, "--kubeconfig=" + kubeconfig, "--host-root=" + s.Host(node), "--health-listen=",
		"--spc-inventory=" + Namespace + "/holdfast-spc-inventory", "--log-format=text",
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m.agent = agent
	return nil
}

// Agent is the process of a node's agent, nil if none was started on the machine that the node has now.
func (s *Site) Agent(node string) *testenv.Process {
	m := s.machine(node)
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.agent
}

// StartWebhooks starts two replicas of the built webhook, with further flags, and their Service. It returns before they
// answer.
func (s *Site) StartWebhooks(ctx context.Context, flags ...string) error {
	var backends []string
	for _, name := range []string{"webhook-1", "webhook-2"} {
		w, err := s.addWebhook(ctx, name)
		if err != nil {
			return err
		}
		if err := w.Start(flags...); err != nil {
			return err
		}
		backends = append(backends, w.address())
	}
	var err error
	s.service, err = s.API.ServeService(ctx, Namespace, "holdfast-webhook", backends...)
	return err
}

// Webhooks are the replicas.
func (s *Site) Webhooks() []*Webhook {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.webhooks)
}

func (s *Site) addWebhook(ctx context.Context, name string) (*Webhook, error) {
	kubeconfig, err := s.account(ctx, "holdfast-webhook", "", name)
	if err != nil {
		return nil, err
	}
	port, err := testenv.ReservePort()
	if err != nil {
		return nil, err
	}
	w := &Webhook{site: s, name: name, kubeconfig: kubeconfig, port: port}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.webhooks = append(s.webhooks, w)
	return w, nil
}

// Start starts the replica, again if it was killed.
func (w *Webhook) Start(flags ...string) error {
	process, err := w.site.start(w.name, w.name+".log", w.site.opts.Webhook, "holdfast-webhook", slices.Concat([]string{
		"--kubeconfig=" + w.kubeconfig, "--namespace=" + Namespace, "--listen=" + w.address(),
		"--metrics-listen=", "--health-listen=", "--log-format=text",
	}, flags))
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.process = process
	return nil
}

// Kill ends the replica at once. Start brings it back at the same address.
func (w *Webhook) Kill() error {
	w.mu.Lock()
	process := w.process
	w.process = nil // it is not one of those that should run
	w.mu.Unlock()
	if process == nil {
		return nil
	}
	return process.Kill()
}

// PID is the ID of the replica's process, 0 if it was killed.
func (w *Webhook) PID() int {
	if p := w.current(); p != nil {
		return p.PID()
	}
	return 0
}

func (w *Webhook) current() *testenv.Process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.process
}

func (w *Webhook) address() string { return fmt.Sprintf("127.0.0.1:%d", w.port.Number) }

// account writes a kubeconfig with a token of one of Holdfast's service accounts, bound to a Node or to nothing.
func (s *Site) account(ctx context.Context, account, node, name string) (string, error) {
	identity, err := s.API.ServiceAccountConfig(ctx, Namespace, account, node)
	if err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, name+".kubeconfig")
	return path, testenv.WriteKubeconfig(path, identity)
}

// start starts a program, path or bin/<fallback> if that is empty.
func (s *Site) start(name, log, path, fallback string, args []string) (*testenv.Process, error) {
	if path == "" {
		var err error
		if path, err = testenv.Binary(fallback); err != nil {
			return nil, err
		}
	}
	return testenv.StartProcess(testenv.ProcessOptions{Name: name, Path: path, Args: args, LogFile: filepath.Join(s.Dir, log)})
}
