// Package spc finds the StackPointCloud (SPC) record of a node, says which labels follow from it, and where each machine
// of the cluster is seen: in Kubernetes, at the cloud, in SPC.
//
// It is pure. Exactly one live record must match on the evidence; doubt yields no labels and the sentence that says why.
package spc
