package readiness

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestGates(t *testing.T) {
	ipv4 := []string{"10.244.3.0/24"}
	dual := []string{"10.244.3.0/24", "fd00:3::/64"}
	none, flannel := Policy{}, Policy{Force: []string{GateFlannel}}
	usesEtcd, trusting := Policy{FlannelUsesEtcd: true}, Policy{TrustDurableSubnetFile: true}
	subnet := func(change func(*SubnetFile)) Facts { return readyFactsWith(func(f *Facts) { change(&f.Subnet) }) }
	volatile := func(p Presence) Facts { return subnet(func(s *SubnetFile) { s.Volatile = p }) }
	subnets := func(ipv4, ipv6 string) Facts {
		return subnet(func(s *SubnetFile) { s.Subnet, s.IPv6Subnet = ipv4, ipv6 })
	}
	mtu := func(mtu string) Facts { return subnet(func(s *SubnetFile) { s.MTU = mtu }) }
	conflist := func(change func(*Conflist)) Facts { return readyFactsWith(func(f *Facts) { change(&f.Conflist) }) }
	plugin := func(i int, p Presence, problem string) Facts {
		return conflist(func(c *Conflist) { c.Plugins[i].Executable, c.Plugins[i].Problem = p, problem })
	}
	noConflist := conflist(func(c *Conflist) { c.Presence, c.Plugins = Absent, nil })
	noPlugins := conflist(func(c *Conflist) { c.Plugins = nil })
	ignoring := conflist(func(c *Conflist) { c.Ignored = []string{"/d/100-x"} })
	beforeFlannel := conflist(func(c *Conflist) { *c = bridgeFacts(false, "10.88.0.0/16").Conflist })
	withoutFlannel := func(c Conflist) Facts {
		return readyFactsWith(func(f *Facts) { f.Conflist, f.Subnet.Presence = c, Absent })
	}
	crio := Conflist{Directory: "/d", Presence: Absent, Ignored: []string{"/d/100-crio-bridge.conflist"}}
	unparsable := withoutFlannel(Conflist{Presence: Present, Problem: "parsing 10-flannel.conflist: unexpected end"})
	const outside = "10.85.0.0/16, 1100:200::/24 outside the node's podCIDRs 10.244.3.0/24, fd00:3::/64"
	const byPackage = "/d/100-crio-bridge.conflist, which a package installed"
	for _, c := range []struct {
		name   string
		facts  Facts
		cidrs  []string
		policy Policy
		// cni and flannel are parts of what the gates miss: "" if the gate is open, "-" if it
		// is not evaluated.
		cni, flannel string
	}{
		{"all present", readyFacts(), ipv4, none, "", ""},
		{"all present, no podCIDR", readyFacts(), nil, none, "", "podCIDRs of the node"},
		{"all present, no podCIDR, flannel uses etcd", readyFacts(), nil, usesEtcd, "", ""},
		{"another CNI", calicoFacts(), nil, none, "", "-"},
		{"another CNI, flannel forced", calicoFacts(), nil, flannel, "", "/run/flannel/subnet.env"},
		{"package's bridge", bridgeFacts(false, "10.85.0.0/16", "1100:200::/24"), dual, none, outside, "-"},
		{"package's bridge before flannel", beforeFlannel, ipv4, none, "10.88.0.0/16", "-"},
		{"bridge, no podCIDR", bridgeFacts(false, "10.85.0.0/16"), nil, none, "", "-"},
		{"ambiguous bridge, no podCIDR", bridgeFacts(true, "10.88.0.0/16"), nil, none, "podCIDRs of the node", "-"},
		{"kubenet by containerd's template", bridgeFacts(true, "10.244.3.0/24"), ipv4, none, "", "-"},
		{"bridge with the podCIDR", bridgeFacts(false, "10.244.3.0/24"), ipv4, none, "", "-"},
		{"wider bridge, like minikube's", bridgeFacts(false, "10.244.0.0/16"), ipv4, none, "", "-"},
		{"bridge without a subnet", bridgeFacts(false), ipv4, none, "", "-"},
		{"nothing checked", Facts{}, nil, none, "could not be checked", "-"},
		{"only a package's conflist", withoutFlannel(crio), nil, none, byPackage, "-"},
		{"no conflist, flannel present", noConflist, ipv4, none, "/etc/cni/net.d", "-"},
		{
			"no conflist, flannel forced", withoutFlannel(Conflist{Presence: Absent}), nil, flannel,
			"a CNI configuration", "subnet.env",
		},
		{"unparsable conflist", unparsable, nil, none, "unexpected end", "-"},
		{"a package's conflist beside that of the cluster", ignoring, ipv4, none, "", ""},
		{"conflist without plugins", noPlugins, nil, none, "lists none", "-"},
		{"missing delegate", plugin(1, Absent, ""), ipv4, none, "bridge (called by flannel) is missing", ""},
		{"unchecked plugin", plugin(2, Unknown, ""), ipv4, none, "portmap could not be checked", ""},
		{"unreadable plugin", plugin(2, Unknown, "permission denied"), ipv4, none, "portmap: permission denied", ""},
		{"no subnet file", closedFacts(), ipv4, none, "", "/run/flannel/subnet.env"},
		{
			"unchecked subnet file", subnet(func(s *SubnetFile) { s.Presence = Unknown }), ipv4, none,
			"", "could not be checked",
		},
		{"partial subnet file", subnet(func(s *SubnetFile) { s.Problem = "no MTU" }), ipv4, none, "", "(no MTU)"},
		{"subnet file on a disk", volatile(Absent), ipv4, none, "", "earlier boot"},
		{"subnet file perhaps on a disk", volatile(Unknown), ipv4, none, "", "it is unknown whether"},
		{"subnet file on a disk, trusted", volatile(Absent), ipv4, trusting, "", ""},
		{"subnet of another node", subnets("10.244.4.1/24", ""), ipv4, none, "", "10.244.4.1/24"},
		{"subnet wider than the podCIDR", subnets("10.244.3.1/23", ""), ipv4, none, "", "10.244.3.1/23"},
		{"invalid podCIDR", readyFacts(), []string{"10.244.3.0"}, none, "", "podCIDRs"},
		{"invalid subnet", subnets("10.244.3", ""), ipv4, none, "", `"10.244.3"`},
		{"no subnet", subnets("", ""), ipv4, none, "", "a subnet"},
		{"no MTU", mtu(""), ipv4, none, "", "MTU"},
		{"MTU out of range", mtu("99999999999999999999"), ipv4, none, "", "MTU"},
		{"MTU 0", mtu("0"), ipv4, none, "", "MTU"},
		{"dual-stack", subnets("10.244.3.1/24", "fd00:3::1/64"), dual, none, "", ""},
		{"dual-stack, IPv6 of another node", subnets("10.244.3.1/24", "fd00:4::1/64"), dual, none, "", "fd00:4::1/64"},
		{"wrong family", subnets("", "10.244.3.1/24"), ipv4, none, "", "FLANNEL_IPV6_SUBNET"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := map[string]string{GateCNI: c.cni, GateFlannel: c.flannel}
			if c.flannel == "-" {
				delete(want, GateFlannel)
			}
			requireGates(t, &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: c.cidrs}}, c.facts, c.policy, want)
		})
	}
}

func TestNetworkPluginGate(t *testing.T) {
	ansible, marker := Policy{NetworkPluginLabel: "built-by=ansible"}, Policy{Force: []string{GateNetworkPlugin}}
	present := func(m Marker) Facts {
		m.Presence = Present
		return readyFactsWith(func(f *Facts) { f.Marker = m })
	}
	unchecked := readyFactsWith(func(f *Facts) { f.Marker.Presence = Unknown })
	unreadable, bootless := present(Marker{BootID: thisBoot, Problem: "input/output error"}), present(Marker{})
	bootless.BootID = ""
	for name, c := range map[string]struct {
		facts   Facts
		label   string
		policy  Policy
		missing string
	}{
		"built by Ansible, no marker": {
			readyFacts(), "ansible", ansible, "the network_plugin role's marker /run/holdfast/network_plugin.done",
		},
		"marker of an earlier boot": {present(Marker{BootID: otherBoot}), "", marker, otherBoot},
		"unchecked marker":          {unchecked, "", marker, "could not be checked"},
		"unreadable marker":         {unreadable, "", marker, "input/output error"},
		"empty marker, no boot ID":  {bootless, "", marker, "could not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node()
			n.Labels = map[string]string{"built-by": c.label}
			want := map[string]string{GateCNI: "", GateFlannel: "", GateNetworkPlugin: c.missing}
			requireGates(t, n, c.facts, c.policy, want)
		})
	}
}

// requireGates checks which gates are evaluated, and a part of what each gate misses.
func requireGates(t *testing.T, n *corev1.Node, f Facts, p Policy, want map[string]string) {
	t.Helper()
	gates := Decide(n, f, p, noon()).Gates
	require.Len(t, gates, len(want), "%+v", gates)
	for _, g := range gates {
		missing, evaluated := want[g.Name]
		require.True(t, evaluated, "%+v", g)
		require.Equal(t, missing == "", g.Open, "%+v", g)
		require.Equal(t, g.Open, g.Missing == "", "%+v", g)
		require.Contains(t, g.Missing, missing)
		require.NotEmpty(t, g.Reason)
	}
}

func TestPolicyValidate(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		err    string
	}{
		"forced":              {Policy{Force: []string{GateCNI, GateFlannel, GateNetworkPlugin}}, ""},
		"unknown gate":        {Policy{Force: []string{"calico"}}, `gate "calico"`},
		"unit":                {Policy{Force: []string{"unit:network-plugin.service", "unit:getty@tty1.service"}}, ""},
		"condition":           {Policy{Force: []string{"condition:example.org/Network"}}, ""},
		"unit without suffix": {Policy{Force: []string{"unit:network-plugin"}}, "full name"},
		"unit, empty suffix":  {Policy{Force: []string{"unit:network-plugin."}}, "full name"},
		"unit without name":   {Policy{Force: []string{"unit:.service"}}, "full name"},
		"unit path":           {Policy{Force: []string{"unit:/etc/systemd/system/x.service"}}, "full name"},
		"unit pattern":        {Policy{Force: []string{"unit:network-*.service"}}, "full name"},
		"empty condition":     {Policy{Force: []string{"condition:"}}, "type of one Node condition"},
		"condition status":    {Policy{Force: []string{"condition:Network=True", "condition:Network=False"}}, ""},
		"unknown status":      {Policy{Force: []string{"condition:Network=Unknown"}}, "such as condition:Network=True"},
		"node label":          {Policy{Force: []string{"label:example.org/role=worker", "label:role", "label:role="}}, ""},
		"node label, value":   {Policy{Force: []string{"label:role=a b"}}, "write label:KEY or label:KEY=VALUE"},
		"endpoints":           {Policy{Force: []string{"http::80", "https:[::1]:443/x?y=z", "tcp:Localhost:1"}}, ""},
		"URL":                 {Policy{Force: []string{"http://127.0.0.1:80/"}}, "HOST:PORT/PATH without //"},
		"no port":             {Policy{Force: []string{"http:localhost/healthz"}}, `healthz": write HOST:PORT, such as`},
		"port too large":      {Policy{Force: []string{"tcp:localhost:65536"}}, `the port "65536" is not a number`},
		"zone":                {Policy{Force: []string{"tcp:[fe80::1%eth0]:80"}}, `the host "fe80::1%eth0" is neither`},
		"IPv6, no brackets":   {Policy{Force: []string{"tcp:::1:80"}}, "[::1]:9879"},
		"port 0":              {Policy{Force: []string{"tcp:localhost:0"}}, `the port "0" is not a number`},
		"host":                {Policy{Force: []string{"tcp:user@host:80"}}, `the host "user@host" is neither`},
		"fragment":            {Policy{Force: []string{"http:localhost:80/a#b"}}, "encode blanks and #"},
		"wrong escape":        {Policy{Force: []string{"http:localhost:80/%zz"}}, "encode special characters"},
		"forms":               {Policy{Force: []string{"dns"}}, "label:KEY[=VALUE], http:HOST:PORT/PATH"},
		"own condition":       {Policy{Force: []string{"condition:NetworkHeld"}}, "cannot wait for its own condition"},
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
