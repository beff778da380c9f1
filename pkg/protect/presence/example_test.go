package presence_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-dev/holdfast/pkg/autoscaler"
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

func ExampleMarks() {
	p := presence.Assess(scan(), presence.Inputs{Node: "node1", UID: "uid1", ClustersKnown: true})
	// A person has already set the annotation of Karpenter. Holdfast neither changes nor records it.
	before := map[string]string{autoscaler.Karpenter: "true"}
	annotations, labels := presence.Marks(p, before, nil, nil)
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Println(key)
	}
	marks := strings.Split(*annotations[presence.MarksAnnotation], ",")
	fmt.Println(len(marks), "marks, the first one", marks[0])
	fmt.Println("label:", *labels["holdfast.dev/etcd-member"])
	// Output:
	// atlassian.com/no-delete
	// autoscaling.cast.ai/removal-disabled
	// cluster-autoscaler.kubernetes.io/scale-down-disabled
	// holdfast.dev/etcd
	// holdfast.dev/marks
	// holdfast.dev/protected-because
	// 3 marks, the first one atlassian.com/no-delete
	// label: true
}
