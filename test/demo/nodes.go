package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/internal/testenv"
)

// boot is the boot ID of a node's host.
func boot(node string) string {
	sum := sha256.Sum256([]byte(node))
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// register lays out a node's host and registers it as its kubelet does.
func (w *world) register(ctx context.Context, node, ip string, ready bool) error {
	files := map[string]string{"proc/sys/kernel/random/boot_id": boot(node) + "\n", "etc/hostname": node + "\n"}
	for name, text := range files {
		if err := w.write(node, name, text, 0o644); err != nil {
			return err
		}
	}
	_, _, err := w.api.AddNode(ctx, testenv.NodeSpec{Name: node, InternalIP: ip, BootID: boot(node), Ready: ready})
	return err
}

// write puts a file on a node's host, by rename, as careful programs do. One that is there stays.
func (w *world) write(node, name, text string, mode os.FileMode) error {
	path := filepath.Join(w.host(node), name)
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

// layCNI is what flannel's init containers leave on a host.
func (w *world) layCNI(node string) error {
	var err error
	for _, plugin := range []string{"flannel", "portmap", "bridge", "host-local", "loopback"} {
		err = errors.Join(err, w.write(node, "opt/cni/bin/"+plugin, "#!/bin/sh\n", 0o755))
	}
	return errors.Join(err, w.write(node, "etc/cni/net.d/10-flannel.conflist", `{
  "name": "cbr0", "cniVersion": "0.3.1",
  "plugins": [
    {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, 0o644))
}

// release writes flannel's subnet file and returns how long after that the API server told that the node is schedulable.
func (w *world) release(ctx context.Context, node string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	nodes := w.api.Client().CoreV1().Nodes()
	n, err := nodes.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if n.Spec.PodCIDR == "" {
		return 0, fmt.Errorf("node %s has no podCIDR", node)
	}
	watch, err := nodes.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + node, ResourceVersion: n.ResourceVersion})
	if err != nil {
		return 0, err
	}
	defer watch.Stop()
	subnet := fmt.Sprintf("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
		strings.Replace(n.Spec.PodCIDR, ".0/", ".1/", 1))
	if err := w.write(node, "run/flannel/subnet.env", subnet, 0o644); err != nil {
		return 0, err
	}
	there := time.Now()
	for event := range watch.ResultChan() {
		if n, ok := event.Object.(*corev1.Node); ok && !n.Spec.Unschedulable {
			return time.Since(there), nil
		}
	}
	return 0, fmt.Errorf("waiting for node %s to be released: %w", node, errors.Join(w.dead(), ctx.Err()))
}

// deleteNode asks for a node's deletion as a person does, and shows what kubectl answers.
func (w *world) deleteNode(ctx context.Context, s *story, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := w.api.Kubectl(ctx, "delete", "node", node)
	s.show("kubectl delete node "+node, out)
	return out, err
}
