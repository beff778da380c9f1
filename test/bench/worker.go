package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-dev/holdfast/pkg/protect"
	"github.com/holdfast-dev/holdfast/pkg/readiness"
	"github.com/holdfast-dev/holdfast/test/site"
)

// subnetEnv is what flanneld writes last on a host: with it the network works.
const subnetEnv = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

// agentAccount is the account of every agent, as the audit log has it.
const agentAccount = "system:serviceaccount:" + site.Namespace + ":holdfast-agent"

// born registers a node as its kubelet does, held from birth, on a host that has all of flannel but the subnet file. The
// directory of that file is there before flanneld, as the volume of its pod.
func (s *stage) born(ctx context.Context, name string) error {
	made, err := s.Register(ctx, name, "192.0.2.1", false)
	if err != nil {
		return err
	}
	if !made.Spec.Unschedulable {
		return fmt.Errorf("node %s was not born held", name)
	}
	for _, plugin := range []string{"flannel", "portmap", "bridge", "host-local", "loopback"} {
		err = errors.Join(err, s.Write(name, "opt/cni/bin/"+plugin, "#!/bin/sh\n", 0o755))
	}
	return errors.Join(err, s.Write(name, "run/flannel/.volume", "", 0o644),
		s.Write(name, "etc/cni/net.d/10-flannel.conflist", `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
  {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`, 0o644))
}

// signal is the last thing that a host does for its network. It returns when that began.
func (s *stage) signal(name string) (time.Time, error) {
	begun := time.Now()
	return begun, s.Write(name, "run/flannel/subnet.env", subnetEnv, 0o644)
}

// waiting returns when every node is held for want of flannel's subnet file alone and its host was looked at for etcd.
func (s *stage) waiting(ctx context.Context, prefix string, count int) error {
	return s.Until(ctx, fmt.Sprintf("the agents of %d nodes to wait for flannel alone", count), func(ctx context.Context) error {
		list, err := s.nodes.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		found := 0
		for i := range list.Items {
			n := &list.Items[i]
			if strings.HasPrefix(n.Name, prefix) && n.Spec.Unschedulable && condition(n, readiness.NetworkHeld).Reason == readiness.WaitingForFlannel &&
				condition(n, protect.EtcdMemberCondition).Status == corev1.ConditionFalse {
				found++
			}
		}
		if found != count {
			return fmt.Errorf("it is so on %d", found)
		}
		return nil
	})
}

// released says that a hold has ended and that all of it is written.
func released(n *corev1.Node) bool {
	record, err := readiness.ParseRecord(n.Annotations[readiness.HoldAnnotation])
	return err == nil && record.State == readiness.Released && !n.Spec.Unschedulable
}

// told says that the conditions of a Node have followed its release.
func told(n *corev1.Node) bool {
	return condition(n, readiness.NetworkHeld).Status == corev1.ConditionFalse &&
		condition(n, corev1.NodeNetworkUnavailable).Status == corev1.ConditionFalse
}

func condition(n *corev1.Node, of corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// leave leaves everything alone for a while.
func leave(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
