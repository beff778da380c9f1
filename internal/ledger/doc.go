// Package ledger reads, asks, grants and settles: it is all I/O between the webhook and the EtcdClusters.
//
// A Book answers one deletion at a time, in every replica. A Leader does the slow work in one of them: bindings,
// tombstones, settlement, labels, the summary. What may be lost is decided in pkg/protect alone, from one View at a
// time; this package brings the View together and writes down what was decided. It knows nothing of etcd, and treats
// what it could not read as a reason to refuse.
package ledger
