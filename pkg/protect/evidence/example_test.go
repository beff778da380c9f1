package evidence_test

import (
	"fmt"

	"github.com/holdfast-dev/holdfast/pkg/protect/evidence"
)

func ExampleScan() {
	scan := evidence.Scan{
		Found: []evidence.FoundServer{{
			Server: evidence.Server{Source: evidence.SystemdUnit, Where: "systemd unit etcd.service", PID: 812},
			Identity: evidence.Identity{
				Ref:  evidence.MemberRef{Cluster: "cdf818194e3a8c32", Member: "3a1575389de83a83"},
				Name: "etcd1",
			},
		}, {
			Server:   evidence.Server{Source: evidence.Process, Where: "process 99", PID: 99},
			Identity: evidence.Identity{Problem: "no client certificate was accepted"},
		}},
		Unknown: []string{"the directory /var/lib/etcd-events: permission denied"},
	}
	for _, server := range scan.Found {
		fmt.Printf("%s: running %t, answered %t\n", server.Where, server.IsRunning(), server.HasAnswered())
	}
	fmt.Println("absence of other servers is proven:", len(scan.Unknown) == 0)
	// Output:
	// systemd unit etcd.service: running true, answered true
	// process 99: running true, answered false
	// absence of other servers is proven: false
}
