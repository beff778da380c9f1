package site

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// machine is the host of a node: a directory in the place of its root, and the agent that runs there.
type machine struct {
	node string
	// number counts the machines that have had this name, from 1.
	number int
	agent  *testenv.Process
}

// boot is the machine's boot ID.
func (m *machine) boot() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", m.node, m.number))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// machine returns the machine of a node, a first one if there has been none.
func (s *Site) machine(node string) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machines[node] == nil {
		s.machines[node] = &machine{node: node, number: 1}
	}
	return s.machines[node]
}

// Host is the directory that plays the root of a node's host. A worker's lies on a tmpfs, where its /run must be; etcd
// would fill a small tmpfs with the space that it sets aside for its log.
func (s *Site) Host(node string) string {
	m := s.machine(node)
	name := node
	if m.number > 1 {
		name = fmt.Sprintf("%s.%d", node, m.number)
	}
	if strings.HasPrefix(node, "worker") {
		return filepath.Join(s.volatile, name)
	}
	return filepath.Join(s.Dir, "hosts", name)
}

// Scrap ends the agent of a node's machine at once, as the end of the machine does, and puts a new and empty machine in
// its place. etcd on it is for the caller to kill.
func (s *Site) Scrap(node string) error {
	old := s.machine(node)
	s.mu.Lock()
	s.machines[node] = &machine{node: node, number: old.number + 1}
	s.mu.Unlock()
	if old.agent == nil {
		return nil
	}
	return old.agent.Kill()
}

// Register lays out a node's host and registers it as its kubelet does.
func (s *Site) Register(ctx context.Context, node, ip string, ready bool) (*corev1.Node, error) {
	boot := s.machine(node).boot()
	files := map[string]string{"proc/sys/kernel/random/boot_id": boot + "\n", "etc/hostname": node + "\n"}
	for name, text := range files {
		if err := s.Write(node, name, text, 0o644); err != nil {
			return nil, err
		}
	}
	made, _, err := s.API.AddNode(ctx, testenv.NodeSpec{Name: node, InternalIP: ip, BootID: boot, Ready: ready})
	return made, err
}

// Write puts a file on a node's host, by rename, as careful programs do. One that is there stays.
func (s *Site) Write(node, name, text string, mode os.FileMode) error {
	path := filepath.Join(s.Host(node), name)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", []byte(text), mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
