package presence_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
	"github.com/holdfast-dev/holdfast/pkg/protect/presence"
)

// scan is the result of scanning a host with one server, which answered.
func scan() evidence.Scan {
	return evidence.Scan{Found: []evidence.FoundServer{{
		Server: evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812},
		Identity: evidence.Identity{
			Ref:  evidence.MemberRef{Cluster: "cdf818194e3a8c32", Member: "3a1575389de83a83"},
			Name: "etcd1",
		},
	}}}
}

func ExampleAssess() {
	p := presence.Assess(scan(), presence.Inputs{Node: "node1", UID: "uid1", ClustersKnown: true})
	fmt.Println(p.Membership == presence.MemberPresent, p.Reason)
	fmt.Println(p.Because)

	unreadable := evidence.Scan{Unknown: []string{"the process table: permission denied"}}
	p = presence.Assess(unreadable, presence.Inputs{Node: "node1", UID: "uid1", ClustersKnown: true})
	fmt.Println(p.Membership == presence.MembershipUnknown, p.Reason)
	// Output:
	// true SystemdUnit
	// etcd member etcd1 (3a1575389de83a83) of cluster cdf818194e3a8c32, systemd unit etcd.service
	// true Unknown
}
