// Package simulation plays random histories against the real webhook code: two replicas, each
// with the packages admission, deletion, leader and clusterstore, of which one leads. It
// simulates everything else: etcd clusters and their machines, the agents, an API server, and
// time. TestSimulatedAPIServer compares the simulated API server with a real one.
//
// # How a history works
//
// Every call that the code under test makes outside its own memory waits at a gate
// (client_test.go). One driver (driver_test.go) picks the next event from one stream of random
// choices. A call is answered, fails, or is executed although its caller receives an error. A
// cache receives a change, an agent probes or publishes, a machine is terminated, a replica
// crashes, or time passes. Therefore every interleaving is possible, and a history can be
// repeated and shortened from its choices. If several goroutines of a replica wake at the same
// moment, a choice decides which one goes on (loop.Woke). So a seed plays the same history on any
// number of processors, and with the race detector (TestReplay).
//
// The simulation knows the true state of etcd, which the code under test never reads. For
// each allowed deletion, verdict_test.go checks that every etcd cluster keeps its quorum even
// if all allowed deletions happen. Some histories end with a check that safe deletions are
// allowed again after all faults (recovery_test.go). The scenarios are fixed histories in
// which the test decides what happens; most of them are files that TestTraces plays.
//
// # Drains
//
// Programs cordon nodes, evict their guard pods, and take the machines away as soon as the eviction
// was allowed: they reboot them, terminate them and delete the Node last, or delete the Node first
// (drains_test.go). They give up, other users open the nodes, and agents restart. From the moment
// at which the eviction is allowed, the machine may be away. That ends when the node is open again
// and its own agent has proven the member healthy twice, thirty seconds apart. The leader creates
// guard pods by the real plan (guards_test.go). A drain that finds no guard pod is not judged, and
// takes no machine away.
//
// # Machines
//
// In some histories, Cluster API or Karpenter manages the machines
// (machinecontrollers_test.go). Its objects are deleted in any order, and the entry of the webhook
// reviews that. The real Controller of package machinehook keeps the hooks of Machines. A Machine
// without a hook, and a NodeClaim that is not registered, end their machine at any time without a
// request for the Node. Karpenter deletes the Node of a registered NodeClaim first. From the moment
// at which a review allows that a machine ends, it may be gone at once, until the object is gone
// without its machine. No hook of a node with etcd may be removed without a review. Deletions that
// no webhook has answered are not checked, because that entry fails open. Neither are those whose
// Node was missing in the cache of the replica, if the object does not name it.
//
// # How to run it
//
// Each test run plays fifty fixed histories. These commands play random ones in addition, or
// log one history of a seed:
//
//	go test ./test/simulation -run 'TestHistories$' -histories 10000 -within 3m -v
//	go test ./test/simulation -run 'TestHistories$' -seed 7 -v
//
// The flags -with and -without name features that every history has, or none: attacks, latenodes,
// reboots, drains, partitions, corruptions, noroles. One history in five is mostly about drains,
// and one in eight of the others about machines (-without machines). TestHistoriesWithDrains and
// TestHistoriesWithMachines play only such histories. In one history in three, no Node has a role.
//
// # How to read a failed history
//
// The test shortens a failed history, and prints its seed, the violated property and one line
// for each event with its simulated time. Lines of DELETE n belong to one deletion, from its
// start over its calls of the webhook to its end. Read the lines of the last allowed DELETE
// first, and then which machines and members changed between the call and the answer.
package simulation
