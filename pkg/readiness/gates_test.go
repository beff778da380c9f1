package readiness

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const (
	thisBoot  = "3f2c6f0e-boot-b"
	otherBoot = "9a1d7b44-boot-a"
)

// ready returns the facts of a host on which all that flannel needs is there.
func ready() Facts {
	return Facts{
		BootID: thisBoot,
		Subnet: SubnetFile{
			Path: "/run/flannel/subnet.env", Presence: Present, Volatile: Present,
			Network: "10.244.0.0/16", Subnet: "10.244.3.1/24", MTU: "1450",
		},
		Conflist: Conflist{
			Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-flannel.conflist", Presence: Present, Name: "cbr0",
			Plugins: []Plugin{
				{Type: "flannel", Executable: Present},
				{Type: "bridge", NeededBy: "flannel", Executable: Present},
				{Type: "portmap", Executable: Present},
			},
		},
		Marker: Marker{Path: "/run/holdfast/network_plugin.done", Presence: Absent},
		Etcd:   Absent,
	}
}

// bridge returns the facts of a host with a plain bridge.
func bridge(borrowed bool, subnets ...string) Facts {
	f := calico()
	f.Conflist = Conflist{
		Directory: "/etc/cni/net.d", Path: "/etc/cni/net.d/10-net.conflist", Presence: Present, Bridged: subnets, Borrowed: borrowed,
		Plugins: []Plugin{{Type: "bridge", Executable: Present}, {Type: "host-local", NeededBy: "bridge", Executable: Present}},
	}
	return f
}

func with(change func(*Facts)) Facts {
	f := ready()
	change(&f)
	return f
}

// calico returns the facts of a host whose CNI is not flannel.
func calico() Facts {
	return with(func(f *Facts) {
		f.Subnet = SubnetFile{Path: "/run/flannel/subnet.env", Presence: Absent}
		f.Conflist.Path = "/etc/cni/net.d/10-calico.conflist"
		f.Conflist.Plugins = []Plugin{{Type: "calico", Executable: Present}}
	})
}

func TestGates(t *testing.T) {
	flannel4 := []string{"10.244.3.0/24"}
	dual := []string{"10.244.3.0/24", "fd00:3::/64"}
	for name, c := range map[string]struct {
		facts  Facts
		cidrs  []string
		labels map[string]string
		policy Policy
		want   map[string]string // each gate that is asked, and a part of what it misses
	}{
		"all there":                   {ready(), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"all there, no podCIDR":       {ready(), nil, nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"another CNI":                 {calico(), nil, nil, Policy{}, map[string]string{"cni": ""}},
		"another CNI, flannel forced": {calico(), nil, nil, Policy{Force: []string{GateFlannel}}, map[string]string{"cni": "", "flannel": "/run/flannel/subnet.env"}},
		"a package's bridge": {
			bridge(false, "10.85.0.0/16", "1100:200::/24"), dual, nil,
			Policy{},
			map[string]string{"cni": "10.85.0.0/16, 1100:200::/24 outside the node's podCIDRs 10.244.3.0/24, fd00:3::/64"},
		},
		"a package's bridge before flannel, which was seen": {
			with(func(f *Facts) { f.Conflist = bridge(false, "10.88.0.0/16").Conflist }), flannel4, nil,
			Policy{},
			map[string]string{"cni": "10.88.0.0/16"},
		},
		"a bridge, podCIDRs not given out":               {bridge(false, "10.85.0.0/16"), nil, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge under a package's name, no podCIDR":    {bridge(true, "10.88.0.0/16"), nil, nil, Policy{}, map[string]string{"cni": "whose network"}},
		"a package's bridge under a package's name":      {bridge(true, "10.88.0.0/16"), flannel4, nil, Policy{}, map[string]string{"cni": "10.88.0.0/16"}},
		"kubenet, by containerd's template":              {bridge(true, "10.244.3.0/24"), flannel4, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge of the node's podCIDR":                 {bridge(false, "10.244.3.0/24"), flannel4, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge wider than the podCIDR, as minikube's": {bridge(false, "10.244.0.0/16"), flannel4, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge of one family":                         {bridge(false, "fd00:3::/64"), dual, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge with no subnet of its own":             {bridge(false), flannel4, nil, Policy{}, map[string]string{"cni": ""}},
		"a bridge whose subnet is none":                  {bridge(false, "usePodCidr"), flannel4, nil, Policy{}, map[string]string{"cni": "usePodCidr"}},
		"nothing was looked at":                          {Facts{}, nil, nil, Policy{}, map[string]string{"cni": "could not be looked at"}},
		"no conflist, flannel unseen": {
			with(func(f *Facts) { f.Conflist.Presence = Absent; f.Conflist.Plugins = nil; f.Subnet.Presence = Absent }), nil, nil,
			Policy{},
			map[string]string{"cni": "/etc/cni/net.d"},
		},
		"no conflist but a package's": {
			with(func(f *Facts) {
				f.Conflist = Conflist{Directory: "/d", Presence: Absent, PassedOver: []string{"/d/100-crio-bridge.conflist"}}
				f.Subnet.Presence = Absent
			}),
			nil, nil,
			Policy{},
			map[string]string{"cni": "/d/100-crio-bridge.conflist comes with a package"},
		},
		"no conflist, flannel seen": {
			with(func(f *Facts) { f.Conflist.Presence = Absent; f.Conflist.Plugins = nil }), nil, nil,
			Policy{},
			map[string]string{"cni": "/etc/cni/net.d", "flannel": ""},
		},
		"no conflist, flannel forced": {
			with(func(f *Facts) { f.Conflist = Conflist{Presence: Absent}; f.Subnet.Presence = Absent }), nil, nil,
			Policy{Force: []string{GateFlannel}},
			map[string]string{"cni": "a CNI configuration", "flannel": "subnet.env"},
		},
		"conflist does not parse": {
			with(func(f *Facts) {
				f.Conflist.Problem = "parsing 10-flannel.conflist: unexpected end"
				f.Conflist.Plugins = nil
				f.Subnet.Presence = Absent
			}),
			nil, nil,
			Policy{},
			map[string]string{"cni": "unexpected end"},
		},
		"conflist directory not looked at": {with(func(f *Facts) { f.Conflist = Conflist{Directory: "/d"}; f.Subnet = SubnetFile{} }), nil, nil, Policy{}, map[string]string{"cni": "/d"}},
		"conflist without plugins":         {with(func(f *Facts) { f.Conflist.Plugins = nil }), nil, nil, Policy{}, map[string]string{"cni": "names none"}},
		"a delegate is missing": {
			with(func(f *Facts) { f.Conflist.Plugins[1].Executable = Absent }), flannel4, nil,
			Policy{},
			map[string]string{"cni": "bridge (called by flannel) is not there", "flannel": ""},
		},
		"a plugin could not be looked at": {
			with(func(f *Facts) { f.Conflist.Plugins[2].Executable = Unknown }), flannel4, nil,
			Policy{},
			map[string]string{"cni": "portmap could not be looked at", "flannel": ""},
		},
		"a plugin that could not be read, and why": {
			with(func(f *Facts) {
				f.Conflist.Plugins[2].Executable = Unknown
				f.Conflist.Plugins[2].Problem = "permission denied"
			}), flannel4, nil,
			Policy{},
			map[string]string{"cni": "portmap: permission denied", "flannel": ""},
		},
		"subnet file missing":              {with(func(f *Facts) { f.Subnet.Presence = Absent }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "/run/flannel/subnet.env"}},
		"subnet file not looked at":        {with(func(f *Facts) { f.Subnet.Presence = Unknown }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "could not be looked at"}},
		"subnet file half written":         {with(func(f *Facts) { f.Subnet.Problem = "half-written" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "half-written"}},
		"subnet file on a disk":            {with(func(f *Facts) { f.Subnet.Volatile = Absent }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "earlier boot"}},
		"subnet file perhaps on a disk":    {with(func(f *Facts) { f.Subnet.Volatile = Unknown }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "could not be told"}},
		"subnet file on a disk, trusted":   {with(func(f *Facts) { f.Subnet.Volatile = Absent }), flannel4, nil, Policy{TrustDurableSubnetFile: true}, map[string]string{"cni": "", "flannel": ""}},
		"subnet of another node":           {with(func(f *Facts) { f.Subnet.Subnet = "10.244.4.1/24" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "10.244.4.1/24"}},
		"subnet wider than the podCIDR":    {with(func(f *Facts) { f.Subnet.Subnet = "10.244.3.1/23" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "10.244.3.1/23"}},
		"subnet narrower than the podCIDR": {with(func(f *Facts) { f.Subnet.Subnet = "10.244.3.1/25" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"podCIDR that does not parse":      {ready(), []string{"10.244.3.0"}, nil, Policy{}, map[string]string{"cni": "", "flannel": "podCIDRs"}},
		"subnet that does not parse":       {with(func(f *Facts) { f.Subnet.Subnet = "10.244.3" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": `"10.244.3"`}},
		"no subnet":                        {with(func(f *Facts) { f.Subnet.Subnet = "" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "a subnet"}},
		"no MTU":                           {with(func(f *Facts) { f.Subnet.MTU = "" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "MTU"}},
		"an MTU of nought":                 {with(func(f *Facts) { f.Subnet.MTU = "0" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "MTU"}},
		"dual-stack":                       {with(func(f *Facts) { f.Subnet.IPv6Subnet = "fd00:3::1/64" }), dual, nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"dual-stack, flannel has only one": {ready(), dual, nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"dual-stack, IPv6 of another node": {with(func(f *Facts) { f.Subnet.IPv6Subnet = "fd00:4::1/64" }), dual, nil, Policy{}, map[string]string{"cni": "", "flannel": "fd00:4::1/64"}},
		"IPv6 alone":                       {with(func(f *Facts) { f.Subnet.Subnet, f.Subnet.IPv6Subnet = "", "fd00:3::1/64" }), dual[1:], nil, Policy{}, map[string]string{"cni": "", "flannel": ""}},
		"families mixed up":                {with(func(f *Facts) { f.Subnet.Subnet, f.Subnet.IPv6Subnet = "", "10.244.3.1/24" }), flannel4, nil, Policy{}, map[string]string{"cni": "", "flannel": "FLANNEL_IPV6_SUBNET"}},
		"not built by Ansible":             {ready(), nil, map[string]string{"built-by": "hand"}, Policy{NetworkPluginLabel: "built-by=ansible"}, map[string]string{"cni": "", "flannel": ""}},
		"built by Ansible, no marker": {
			ready(), nil,
			map[string]string{"built-by": "ansible"},
			Policy{NetworkPluginLabel: "built-by=ansible"},
			map[string]string{"cni": "", "flannel": "", "network-plugin": "network_plugin.done"},
		},
		"the label's key is enough": {
			with(func(f *Facts) { f.Marker.Presence, f.Marker.BootID = Present, thisBoot }), nil,
			map[string]string{"ansible": ""},
			Policy{NetworkPluginLabel: "ansible"},
			map[string]string{"cni": "", "flannel": "", "network-plugin": ""},
		},
		"marker of an earlier boot": {
			with(func(f *Facts) { f.Marker.Presence, f.Marker.BootID = Present, otherBoot }), nil, nil,
			Policy{Force: []string{GateNetworkPlugin}},
			map[string]string{"cni": "", "flannel": "", "network-plugin": otherBoot},
		},
		"marker not looked at": {
			with(func(f *Facts) { f.Marker.Presence = Unknown }), nil, nil,
			Policy{Force: []string{GateNetworkPlugin}},
			map[string]string{"cni": "", "flannel": "", "network-plugin": "could not be looked at"},
		},
		"marker unreadable": {
			with(func(f *Facts) { f.Marker = Marker{Presence: Present, BootID: thisBoot, Problem: "input/output error"} }), nil, nil,
			Policy{Force: []string{GateNetworkPlugin}},
			map[string]string{"cni": "", "flannel": "", "network-plugin": "input/output error"},
		},
		"an empty marker on a host without a boot ID": {
			with(func(f *Facts) { f.BootID = ""; f.Marker = Marker{Presence: Present} }), nil, nil,
			Policy{Force: []string{GateNetworkPlugin}},
			map[string]string{"cni": "", "flannel": "", "network-plugin": "could not be read"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: c.cidrs}}
			n.Labels = c.labels
			gates := Decide(n, c.facts, c.policy, noon()).Gates
			require.Len(t, gates, len(c.want), "%+v", gates)
			for _, g := range gates {
				missing, asked := c.want[g.Name]
				require.True(t, asked, "%+v", g)
				require.Equal(t, missing == "", g.Open, "%+v", g)
				require.Equal(t, g.Open, g.Missing == "", "%+v", g)
				require.Contains(t, g.Missing, missing)
				require.NotEmpty(t, g.Reason)
			}
		})
	}
}

func TestGateOfAnOldPodCIDRField(t *testing.T) {
	n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDR: "10.244.9.0/24"}}
	gates := Decide(n, ready(), Policy{}, noon()).Gates
	require.False(t, gates[1].Open)
	require.Contains(t, gates[1].Missing, "10.244.9.0/24")
}

func TestPolicyValidate(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		err    string
	}{
		"zero":           {Policy{}, ""},
		"forced":         {Policy{Force: []string{GateCNI, GateFlannel, GateNetworkPlugin}}, ""},
		"unknown gate":   {Policy{Force: []string{"calico"}}, `gate "calico"`},
		"named":          {Policy{Force: []string{"unit:network-plugin.service", "unit:getty@tty1.service", "condition:example.org/Network"}}, ""},
		"no unit":        {Policy{Force: []string{"unit:"}}, "whole name"},
		"half a unit":    {Policy{Force: []string{"unit:network-plugin"}}, "whole name"},
		"many units":     {Policy{Force: []string{"unit:network-*.service"}}, "whole name"},
		"unit by path":   {Policy{Force: []string{"unit:/etc/systemd/system/x.service"}}, "whole name"},
		"no condition":   {Policy{Force: []string{"condition:"}}, "type of one condition"},
		"status too":     {Policy{Force: []string{"condition:Network=True"}}, "type of one condition"},
		"waits for self": {Policy{Force: []string{"condition:NetworkHeld"}}, "cannot wait for what it says itself"},
		"label":          {Policy{NetworkPluginLabel: "built-by=ansible"}, ""},
		"label's key":    {Policy{NetworkPluginLabel: "ansible"}, ""},
		"label, no key":  {Policy{NetworkPluginLabel: "=ansible"}, "no key"},
		"taint key":      {Policy{TaintKey: "readiness.k8s.io/holdfast"}, ""},
		"taint, not key": {Policy{TaintKey: "a=b:NoSchedule"}, "taint key"},
		"foreign cordon": {Policy{TaintKey: "node.kubernetes.io/unschedulable"}, "taint key"},
		"foreign mark":   {Policy{TaintKey: "ToBeDeletedByClusterAutoscaler"}, "taint key"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.policy.Validate()
			if c.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.err)
		})
	}
}
