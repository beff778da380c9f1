// Package history drives random histories against the real webhook code: admission, ledger and pkg/protect, two replicas
// of it, one leader. What is played is the rest of the world: etcd clusters and their machines, the agents, an API server
// (faithful_test.go compares it with the real one), and time.
//
// Everything that the code under test does outside its own memory is a call that waits at a gate. One driver picks what
// happens next, from one stream of choices: a call is served, fails, or is carried out although its caller was told
// otherwise; a cache hears of a change; an agent looks, or publishes; a machine dies; a replica crashes; time passes. So
// that every interleaving can happen, and every history can be played again from its choices and made shorter.
//
// The world knows the truth, which the code under test never sees. Whenever a deletion is allowed, the truth says whether
// every etcd cluster keeps its quorum even if everything that was allowed comes to pass (check_test.go).
//
// The fixed histories are always played. Random ones, or one of them told in full:
//
//	go test ./internal/ledger/history -run TestHistories -histories 10000
//	go test ./internal/ledger/history -run TestHistories -seed 7 -v
//
// A history that fails is made shorter before it is told.
package history
